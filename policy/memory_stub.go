package policy

type stubEngine struct{}
func (stubEngine) Open([]Budget) (Decider, error) { return nothing{}, nil }
func Memory(opts *struct{}) Engine { return stubEngine{} }
