package overload

import "time"

// Row is how a limit did in a scenario, beside the best fixed one.
type Row struct {
	Scenario, Limit string
	Goodput         float64 // answers within the deadline, a second, after Warmup windows
	Share           float64 // of the best fixed limit's
	P99             time.Duration
	Ratio           float64 // to the best fixed limit's
	Recovery        int     // windows after a change of the backend until goodput is there, at worst; -1: it never was
}

const (
	// Warmup is how many windows an adaptive limit has to find out.
	Warmup = 20
	// recovered is the share of the best fixed limit's goodput at which a change is over.
	recovered = 0.9
	// judged is how long goodput is watched for that.
	judged = time.Second
)

// Compare plays a scenario without a limit, with the best fixed one and with each
// algorithm.
func Compare(sc *Scenario, seed uint64) (rows []Row) {
	limit, best := Best(sc, seed)
	rows = append(rows, row(sc, Limit{Name: "none"}, Simulate(sc, Limit{}, seed), best, 0), row(sc, limit, best, best, 0))
	for _, a := range Algorithms(sc) {
		r := Simulate(sc, a, seed)
		rows = append(rows, row(sc, a, r, best, r.Window(0, Warmup)))
	}
	return rows
}

func row(sc *Scenario, limit Limit, r, best *Run, from time.Duration) Row {
	end := sc.Length()
	from = min(from, end-judged)
	x := Row{
		Scenario: sc.Name, Limit: limit.Name,
		Goodput: r.Goodput(from, end), P99: r.P99(from, end), Recovery: recovery(sc, r, best),
	}
	x.Share = x.Goodput / best.Goodput(from, end)
	x.Ratio = float64(x.P99) / float64(best.P99(from, end))
	return x
}

// changes reports whether the backend, and not only its load, differs from before.
func (p Phase) changes(before Phase) bool {
	return p.Servers != before.Servers || p.Service != before.Service || p.DriftTo != before.DriftTo
}

// recovery returns how many windows it took after a change, at worst.
func recovery(sc *Scenario, r, best *Run) (worst int) {
	at := time.Duration(0)
	for i, p := range sc.Phases {
		if i > 0 && len(r.Updates) > 0 && p.changes(sc.Phases[i-1]) {
			n := recoveredIn(r, at, at+p.For, recovered*best.Goodput(at, at+p.For))
			if n < 0 {
				return n
			}
			worst = max(worst, n)
		}
		at += p.For
	}
	return worst
}

// recoveredIn returns after how many windows goodput is what it should be.
func recoveredIn(r *Run, from, to time.Duration, goodput float64) (windows int) {
	if r.Goodput(from, from+judged) >= goodput {
		return 0
	}
	for _, u := range r.Updates {
		if u.At > from && u.At < to-judged {
			windows++
			if r.Goodput(u.At, u.At+judged) >= goodput {
				return windows
			}
		}
	}
	return -1
}
