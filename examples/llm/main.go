// LLM limits the tokens of a language model: 6000 a minute for each team, and 3 requests a second for all teams. A
// request's cost becomes known with its answer. So an estimate is reserved first, and settled at the real count. A
// surplus is given back at once, as if the real count had been reserved. A shortfall is charged, and may become a
// debt. The same reservation holds a team to 1000 dollars a day: that layer settles at the answer's price.
//
// The burst must be large enough for estimates that are too high. With estimates e, real costs a and calls of length d at the
// rate r, the whole rate is used if the burst is at least e·r·d/a − r·d + e. At 100 tokens a second, estimates of 4000 for
// 900 tokens, in calls of 5 s, need a burst of 5723. It is 6000: more than the largest estimate that may pass here, 5000.
package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/weir-go/ratelimit"
)

// prompt is one request to the model: its maximum number of tokens, how many the model will use, and whether the model fails.
type prompt struct {
	team     string
	most     int
	uses     int
	price    int // the answer's price, in millionths of a dollar
	failing  bool
	question string
}

// outputPrice is a token's price, in millionths of a dollar.
const outputPrice = 10

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	tokens, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(6000), 6000).Named("tokens"), nil)
	if err != nil {
		return err
	}
	requests, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(3), 10).Named("requests"), nil)
	if err != nil {
		return err
	}
	// the units are millionths of a dollar
	dollars, err := ratelimit.New[string](ratelimit.Calendar(1_000_000_000, ratelimit.Day("UTC")).Named("dollars"), nil)
	if err != nil {
		return err
	}
	byTeam := func(p *prompt) (string, error) { return p.team, nil }
	used := ratelimit.By(tokens, byTeam) // reserves the cost of Reserve, and settles at the cost of Settle
	spent := ratelimit.By(dollars, byTeam)
	spent.Cost = func(p *prompt) int { return p.most * outputPrice }
	spent.Actual = func(p *prompt) int { return p.price }
	count := ratelimit.By(requests, func(*prompt) (string, error) { return "all teams", nil })
	count.Cost = func(*prompt) int { return 1 }
	budget, err := ratelimit.All(used, spent, count)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "team\tquestion\treserved\tused\tleft\tverdict")
	for i := range prompts {
		if err := send(w, budget, tokens, &prompts[i]); err != nil {
			return err
		}
	}
	return nil
}

var prompts = []prompt{
	{team: "search", question: "summarise", most: 4000, uses: 900},
	{team: "search", question: "translate", most: 4000, uses: 4700},
	{team: "search", question: "write a novel", most: 5000, uses: 5000},
	{team: "support", question: "greet", most: 500, uses: 40},
	{team: "support", question: "time out", most: 2000, failing: true},
	{team: "support", question: "write an epic", most: 7000, uses: 7000},
}

// send reserves a prompt's maximum tokens and their price, sends
// the prompt to the model, and settles both at the real figures.
func send(w *tabwriter.Writer, budget *ratelimit.Layered[*prompt], tokens *ratelimit.Keyed[string], p *prompt) error {
	verdict := "answered"
	r, err := budget.Reserve(context.Background(), p, p.most, 0)
	switch {
	case err != nil:
		verdict = err.Error()
	case !r.Allowed:
		verdict = fmt.Sprintf("denied by %q: retry after %v", r.Limit.Name, r.RetryAfter.Round(time.Second))
	case p.failing:
		r.Cancel()
		verdict = "failed, nothing charged"
	default:
		p.price = p.uses * outputPrice // a real model has one price for its input and one for its output
		r.Settle(p.uses)
	}
	left, err := tokens.Peek(context.Background(), p.team, 0)
	if err != nil {
		return err
	}
	used := 0
	if r.Allowed {
		used = p.uses
	}
	fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\n", p.team, p.question, p.most, used, left.Remaining/10*10, verdict)
	return nil
}
