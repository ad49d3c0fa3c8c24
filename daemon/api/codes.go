package api

// CNI error codes beyond those of the CNI specification (0–99 are the
// specification's; 50 and 51 are its STATUS codes). README lists them all.
const (
	// CodeIncompatibleVersion is the specification's code 1.
	CodeIncompatibleVersion uint = 1
	// CodeUnsupportedField is the specification's code 2.
	CodeUnsupportedField uint = 2
	// CodeInvalidEnvironment is the specification's code 4.
	CodeInvalidEnvironment uint = 4
	// CodeIO is the specification's code 5: the disk or the kernel refused.
	CodeIO uint = 5
	// CodeDecode is the specification's code 6.
	CodeDecode uint = 6
	// CodeInvalidConfig is the specification's code 7.
	CodeInvalidConfig uint = 7
	// CodeTryAgain is the specification's code 11: no subnet is held, its
	// deadline has passed, the daemon is not up or did not answer in time.
	CodeTryAgain uint = 11
	// CodeNotReady is STATUS 50: an ADD cannot be served.
	CodeNotReady uint = 50
	// CodeNotReadyLimited is STATUS 51: an ADD cannot be served and running
	// pods may lack connectivity (the node is fenced, or has lost its subnet).
	CodeNotReadyLimited uint = 51
	// CodeNoAddress says that no address of the subnet is free.
	CodeNoAddress uint = 100
	// CodeAddressUnavailable says that the requested address cannot be had.
	CodeAddressUnavailable uint = 101
	// CodeInterfaceExists says that the namespace has an interface of that
	// name which is not the one this attachment made.
	CodeInterfaceExists uint = 102
	// CodeNamespace says that the network namespace is missing, is no
	// namespace, or is the host's own.
	CodeNamespace uint = 103
	// CodeCheckDiffers says that the interface is not as ADD left it.
	CodeCheckDiffers uint = 110
	// CodeCheckStranded says that the pod sits on a subnet this node no
	// longer holds.
	CodeCheckStranded uint = 111
)
