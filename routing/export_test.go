package routing

// What tests need to speak as a node does, in frames of their own, and errors that only logs have.
var (
	Version     = uint32(version)
	RuleBytes   = ruleBytes
	RuleMessage = ruleMessage
	ReadRule    = readRule
	Prove       = prove
	Binding     = binding
	Anonymous   = anonymous
	ErrVersion  = errVersion
	ErrSilent   = errSilent
)
