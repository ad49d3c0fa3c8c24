package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab"
)

// prefix is the default --etcd-prefix.
const prefix = "/tenure/network"

func key(kind string, subnet netip.Prefix) string {
	return prefix + "/" + kind + "/" + strings.Replace(subnet.String(), "/", "-", 1)
}

// outage replays what made two hosts fight for one subnet.
func (d *demo) outage(ctx context.Context) error {
	subnet, err := subnetOf(ctx, d.n3)
	if err != nil {
		return err
	}
	away := d.pods["n3.a"]
	if err := d.away(ctx, subnet, away); err != nil {
		return err
	}
	created, err := d.handOver(ctx, subnet)
	if err != nil {
		return err
	}
	return d.comeBack(ctx, subnet, created, away)
}

// away cuts n3 off and kills its daemon: nobody is left to close anything but
// the kernel.
func (d *demo) away(ctx context.Context, subnet netip.Prefix, away *lab.Pod) error {
	h, err := beat(ctx, d.pods["n1.a"], away)
	if err != nil {
		return err
	}
	defer h.stop()
	if err := lab.Eventually(ctx, "beats to n3.a", func() error {
		if h.lastAnswered().IsZero() {
			return errors.New("no answer yet")
		}
		return nil
	}); err != nil {
		return err
	}
	gone := d.etcd.Watch(ctx, key("subnets", subnet))
	if err := d.step("n3 is cut off from etcd and its daemon gets SIGKILL; n1.a keeps talking to n3.a", func() (string, error) {
		err := d.n3.Partition(ctx, lab.CutEtcd, true)
		d.n3.Kill()
		return "the overlay still passes", err
	}); err != nil {
		return err
	}
	if err := d.step("n3's overlay closes by itself, before etcd can give "+subnet.String()+" away", func() (string, error) {
		ended, err := deleted(ctx, gone)
		if err != nil {
			return "", err
		}
		ahead := ended.Sub(h.lastAnswered())
		if ahead < beatEvery {
			return "", fmt.Errorf("a packet passed %s before the key went", ahead)
		}
		return fmt.Sprintf("last packet %s before etcd let the lease end", ahead.Round(10*time.Millisecond)), nil
	}); err != nil {
		return err
	}
	return d.step("on n3 itself pods go on: same node and outside", func() (string, error) {
		return fmt.Sprintf("%s and %s answer", d.pods["n3.b"].IP, d.lab.OutsideAddr()), errors.Join(
			lab.WaitPing(ctx, away, d.pods["n3.b"].IP), lab.WaitPing(ctx, away, d.lab.OutsideAddr()))
	})
}

// deleted waits until a watched key is deleted.
func deleted(ctx context.Context, events clientv3.WatchChan) (time.Time, error) {
	for resp := range events {
		if err := resp.Err(); err != nil {
			return time.Time{}, err
		}
		for _, ev := range resp.Events {
			if ev.Type == clientv3.EventTypeDelete {
				return time.Now(), nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("the watch ended: %w", ctx.Err())
}

// handOver lets a new node take the freed subnet. It returns the revision at
// which its record was created.
func (d *demo) handOver(ctx context.Context, subnet netip.Prefix) (int64, error) {
	var err error
	if d.n4, err = d.lab.AddNode(ctx, "n4"); err != nil {
		return 0, err
	}
	if _, err := d.etcd.Put(ctx, key("tenure/reservations", subnet), `{"Node":"n4"}`); err != nil {
		return 0, err
	}
	if err := d.n4.Start(ctx); err != nil {
		return 0, err
	}
	if err := d.step("a new node n4 is given the subnet (a reservation steers it there)", func() (string, error) {
		saw, err := d.ready(ctx, d.n4)
		if err != nil {
			return "", err
		}
		if got, err := subnetOf(ctx, d.n4); err != nil || got != subnet {
			return "", errors.Join(err, fmt.Errorf("n4 holds %s, want %s", got, subnet))
		}
		return saw, nil
	}); err != nil {
		return 0, err
	}
	if err := d.addPod(ctx, d.n4, "a", lab.PodOptions{}); err != nil {
		return 0, err
	}
	if err := d.step("n1.a → n4.a, in the subnet that was n3's", func() (string, error) {
		to := d.pods["n4.a"].IP
		return to.String() + " answers", lab.WaitPing(ctx, d.pods["n1.a"], to)
	}); err != nil {
		return 0, err
	}
	resp, err := d.etcd.Get(ctx, key("subnets", subnet))
	if err != nil || len(resp.Kvs) != 1 {
		return 0, errors.Join(err, fmt.Errorf("%d records of %s", len(resp.Kvs), subnet))
	}
	return resp.Kvs[0].CreateRevision, nil
}

// comeBack starts n3 again with the state it had.
func (d *demo) comeBack(ctx context.Context, subnet netip.Prefix, created int64, old *lab.Pod) error {
	if err := d.n3.Partition(ctx, lab.CutEtcd, false); err != nil {
		return err
	}
	if err := d.n3.Start(ctx); err != nil {
		return err
	}
	if err := d.step("n3 comes back, with the state that says the subnet is its own, and takes another one", func() (string, error) {
		saw, err := d.ready(ctx, d.n3)
		if err != nil {
			return "", err
		}
		if got, err := subnetOf(ctx, d.n3); err != nil || got == subnet {
			return "", errors.Join(err, fmt.Errorf("n3 holds %s again", got))
		}
		return saw, nil
	}); err != nil {
		return err
	}
	if err := d.step("n4's record, read at every etcd revision since", func() (string, error) { return d.untouched(ctx, subnet, created) }); err != nil {
		return err
	}
	if err := d.step("n3's old pods are listed as stranded", func() (string, error) { return d.stranded(ctx, old) }); err != nil {
		return err
	}
	if err := d.step("an old pod on n3 still reaches its neighbour, and nobody over the overlay", func() (string, error) {
		if err := lab.WaitPing(ctx, old, d.pods["n3.b"].IP); err != nil {
			return "", err
		}
		if err := lab.Ping(ctx, old, d.pods["n1.a"].IP); err == nil {
			return "", fmt.Errorf("n1.a answers %s", old.IP)
		}
		return "n1.a stays silent", nil
	}); err != nil {
		return err
	}
	if err := d.addPod(ctx, d.n3, "c", lab.PodOptions{}); err != nil {
		return err
	}
	return d.step("the operator restarts the stranded pods", func() (string, error) { return d.drain(ctx) })
}

// drain removes the old pods of n3. Until then their addresses belong to them
// on n3 itself, even where n4 has given the same ones to its pods.
func (d *demo) drain(ctx context.Context) (string, error) {
	for _, name := range []string{"n3.a", "n3.b"} {
		if err := d.pods[name].Del(ctx); err != nil {
			return "", err
		}
		delete(d.pods, name)
	}
	_, err := d.n3.WaitState(ctx, "no stranded pods", func(s *api.Status) bool { return len(s.Stranded) == 0 })
	return "none is left", err
}

// untouched reads n4's record at each revision from its creation to now.
func (d *demo) untouched(ctx context.Context, subnet netip.Prefix, created int64) (string, error) {
	now, err := d.etcd.Get(ctx, key("subnets", subnet))
	if err != nil {
		return "", err
	}
	for rev := created; rev <= now.Header.Revision; rev++ {
		resp, err := d.etcd.Get(ctx, key("subnets", subnet), clientv3.WithRev(rev))
		if err != nil {
			return "", err
		}
		if len(resp.Kvs) != 1 || resp.Kvs[0].Version != 1 || !strings.Contains(string(resp.Kvs[0].Value), `"Node":"n4"`) {
			return "", fmt.Errorf("revision %d: %v", rev, resp.Kvs)
		}
	}
	return fmt.Sprintf("%d revisions, written once, by n4", now.Header.Revision-created+1), nil
}

func (d *demo) stranded(ctx context.Context, old *lab.Pod) (string, error) {
	s, err := d.n3.Status(ctx)
	if err != nil {
		return "", err
	}
	var all []string
	for _, p := range s.Stranded {
		all = append(all, p.Address)
	}
	if saw := strings.Join(all, " "); strings.Contains(saw, old.IP.String()) {
		return saw, nil
	}
	return "", fmt.Errorf("status lists %v, not %s", all, old.IP)
}
