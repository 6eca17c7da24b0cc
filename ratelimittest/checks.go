package ratelimittest

// checks are the contract. Each is named by what it shows.
var checks []check

func init() { // a variable's initialiser could not refer to itself
	checks = []check{
		{name: "RetryAfter is probed", play: playRetryAfter},
		{name: "Remaining is probed", play: playRemaining},
		{name: "ResetAfter is probed", play: playResetAfter},
		{name: "costs that are none charge nothing", play: playCost},
		{name: "a denial charges nothing", play: playDenied},
		{name: "Peek tells what Take would answer", play: playPeekTake, needs: has[peeker]},
		{name: "nothing spent creates no key", play: playUnseen, needs: has[counter]},
		{name: "a key unequal to itself is refused", play: playInvalidKey, few: true, needs: func(h *history) bool { return h.cfg.NewFloat != nil }},
		{name: "keys know nothing of each other", play: playKeys},
		{name: "every figure is that of the book", play: playBook},
		{name: "a greedy caller gets burst and rate", play: playGreedy},
		{name: "limits are held or refused", play: playLimits},
		{name: "bookings stay within the bound", play: playBookings, needs: has[reserver]},
		{name: "a crowd gets the capacity", play: playCrowd, few: true},
		{name: "a clock set back mints nothing", play: playBack, needs: setBack},
		{name: "a swinging clock mints nothing", play: playSwing, needs: setBack},
		{name: "a look from the future records nothing", play: playFarLook, needs: func(h *history) bool { return setBack(h) && has[peeker](h) }},
		{name: "the clock is read once", play: playReads, needs: setBack},
		{name: "Adjust charges", play: playCharge, needs: has[adjuster]},
		{name: "Adjust grants", play: playGrant, needs: has[adjuster]},
		{name: "debt is regained", play: playDebt, needs: has[adjuster]},
		{name: "debt is capped", play: playAbyss, needs: func(h *history) bool { return setBack(h) && has[adjuster](h) }},
		{name: "Reserve without a delay is Take", play: playReserveNow, needs: has[reserver]},
		{name: "Reserve books ahead", play: playReserveAhead, needs: has[reserver]},
		{name: "a denied Reserve says when", play: playReserveRetry, needs: has[reserver]},
		{name: "a cancelled booking leaves no trace", play: playCancel, needs: has[reserver]},
		{name: "a late settlement gives nothing back", play: playLateSettle, needs: has[reserver]},
		{name: "a settlement gives back what still counts", play: playSettle, needs: has[reserver]},
		{name: "a settlement charges what was underestimated", play: playSettleAbove, needs: has[reserver]},
		{name: "Reset leaves nothing to settle", play: playResetBooked, needs: func(h *history) bool { return has[reserver](h) && has[resetter](h) }},
		{name: "Reset forgets", play: playReset, needs: has[resetter]},
		{name: "Wait spends what fits", play: playWaitFits, needs: has[waiter], few: true},
		{name: "Wait refuses what can never be", play: playWaitErrors, needs: has[waiter], few: true},
		{name: "Wait fails at once if the deadline comes first", play: playWaitDeadline, needs: has[waiter]},
		{name: "a cancelled Wait spends nothing", play: playWaitCancelled, needs: has[waiter], few: true},
		{name: "Sweep drops only keys as good as new", play: playSweep, needs: has[sweeper]},
		{name: "a flood does not wipe a throttled key", play: playFlood, needs: func(h *history) bool { return h.cfg.NewBounded != nil }},
		{name: "what was spent stays spent", play: playSetLimit, needs: has[setter]},
		{name: "an equal limit changes nothing", play: playSameLimit, needs: has[setter]},
	}
}

// setBack is the condition that the clock can be set back.
func setBack(h *history) bool { return h.cfg.Clock != nil }
