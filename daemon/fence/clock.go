package fence

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// timensOffsets is where the kernel shows what this process's clocks are bent
// by. The file is absent where the kernel has no time namespaces.
const timensOffsets = "/proc/self/timens_offsets"

// BootTime reads CLOCK_BOOTTIME: the time since this kernel booted, suspended
// time included. It is the one clock of the fence, and the t0 of a cycle must
// be read from it before the request is sent. Should the clock be unreadable
// the result is 0, and a deadline computed from 0 is in the past.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// TimeNamespaceOffset is how far this process's CLOCK_BOOTTIME stands from the
// kernel's own, as /proc/self/timens_offsets tells. The program in the kernel
// compares with the kernel's own clock, so anything but 0 would shift every
// deadline by as much: Open refuses. A kernel without time namespaces has no
// offset.
func TimeNamespaceOffset() (time.Duration, error) {
	text, err := os.ReadFile(timensOffsets)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the time namespace's offsets: %w", err)
	}
	offset, err := parseBootOffset(text)
	if err != nil {
		return 0, fmt.Errorf("read the time namespace's offsets from %s: %w", timensOffsets, err)
	}
	return offset, nil
}

// straightClock is nil only if it is known that there is no offset.
func straightClock(offset time.Duration, err error) error {
	if err != nil {
		return fmt.Errorf("%w, as far as can be told: %w", ErrClock, err)
	}
	if offset != 0 {
		return fmt.Errorf("%w: it runs in a time namespace that is %s off, and every deadline would be off by as much; start it outside", ErrClock, offset)
	}
	return nil
}

// parseBootOffset takes the boottime line out of the file: a name, seconds,
// nanoseconds. An offset too large for a Duration is an error, never 0.
func parseBootOffset(text []byte) (time.Duration, error) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) != 3 || string(fields[0]) != "boottime" {
			continue
		}
		sec, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("seconds of boottime: %w", err)
		}
		nsec, err := strconv.ParseInt(string(fields[2]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("nanoseconds of boottime: %w", err)
		}
		if limit := int64(math.MaxInt64/time.Second) - 1; sec > limit || sec < -limit {
			return 0, fmt.Errorf("an offset of %d s is out of range", sec)
		}
		return time.Duration(sec)*time.Second + time.Duration(nsec), nil
	}
	return 0, errors.New("there is no boottime line")
}
