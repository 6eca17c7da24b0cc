package redislimit

import (
	"fmt"
	"regexp"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/micros"
	"github.com/weir-go/ratelimit/internal/tentative"
	"github.com/weir-go/ratelimit/internal/turns"
)

// Stored, sent and returned data is packed: big-endian whole numbers without names, of 7 bytes each unless noted.
// These constants name the parts, for Go and for the scripts, whose text contains $NAME in the figure's place.

// A state's first byte. It identifies the algorithm and the format's version: no text begins with it, and the next
// version will use other bytes. One version's script reports another version's state as foreign, and leaves it as it is.
//
// The order matters to the scripts: up to LEAKY they are buckets, from FIXED on windows and the log, and from COUNTER on a
// state has M. The low three bits are an index.
const (
	kindToken   = 0xF8
	kindLeaky   = 0xF9
	kindFixed   = 0xFA
	kindLog     = 0xFB
	kindCounter = 0xFC

	// Additions of this version. A version without them refuses the state with errForeignState.
	kindCalendar = 0xFD
	kindOpen     = 0xFE // a token bucket with open reservations, as it is stored
	kindHeld     = 0xFF // units in use
)

// kinds maps every algorithm to its kind. Kind 0 counts nothing.
var kinds = map[ratelimit.Algorithm]byte{
	ratelimit.AlgorithmUnlimited:      0,
	ratelimit.AlgorithmBlocked:        0,
	ratelimit.AlgorithmTokenBucket:    kindToken,
	ratelimit.AlgorithmLeakyBucket:    kindLeaky,
	ratelimit.AlgorithmFixedWindow:    kindFixed,
	ratelimit.AlgorithmSlidingLog:     kindLog,
	ratelimit.AlgorithmSlidingCounter: kindCounter,
	ratelimit.AlgorithmCalendar:       kindCalendar,
	ratelimit.AlgorithmConcurrent:     kindHeld,
}

var meters = map[byte]meter.Kind{
	kindToken:    meter.TokenBucket,
	kindLeaky:    meter.LeakyBucket,
	kindFixed:    meter.FixedWindow,
	kindLog:      meter.SlidingLog,
	kindCounter:  meter.SlidingCounter,
	kindCalendar: meter.Calendar,
	kindHeld:     meter.Concurrent,
}

// A state: its parts' offsets. Redis stores up to 44 bytes in one piece.
const (
	stateUnits   = 1 // buckets: a unit takes per/units µs, in lowest terms; others: units for each per
	statePer     = 8
	idSize       = 15 // the size of the kind and the figures
	stateLast    = 15 // its highest recorded clock reading
	stateAt      = 22
	stateN       = 29
	stateGen     = 36 // 3 bytes to distinguish a key from an earlier key of the same name
	stateChanges = 39 // 1 byte to count its figures' changes
	stateExpiry  = 40 // 4 bytes: until this second of the clock, at least, Redis keeps it
	stateSize    = 44
	stateM       = 44 // sliding counter: its second figure; log: the sum up to its first spending; calendar: its window's beginning
	wideSize     = 51 // the size of a counter's state, and of the part before a log's spendings

	asideFlag = 0x40 // subtracted from the first byte of a state with the data below; no text begins with such a byte either
	asideSize = 21   // after the first 44 bytes: a bucket's capacity, the units set aside, and the instant when they lapse

	// log: a spending's instant, the sum up to it, and the reading at the spending;
	// units in use: the beginning of their hold, their number, and their owner
	recordSize   = 21
	firstRecords = 33                                 // how many spendings the first part to read of a log has
	firstPart    = wideSize + firstRecords*recordSize // that part
	tailPart     = 16 * recordSize                    // the part of a longer log for the beginning of a search
	baseSize     = 28                                 // the part before the bookings: at, n and m of the state below them, and whether there is room before them
	bookingSize  = 14                                 // the instant and the cost

	// a log's denial until one spending has passed, in an answer: the first byte of a log with units set aside,
	// the state from gen on, the spending's instant, and the instant of the last spending with the sum up to it
	logDenied = 1 + wideSize - stateGen + 3*7

	// the first part to read of any other state: all, unless it has more than 16 bookings or several open reservations
	headPart = wideSize + asideSize + baseSize + 16*bookingSize + noteSize + 1

	duePart = headPart + 128*bookingSize // the part to read of a longer state with possibly due bookings

	// the next part to read of a longer state: its last two bookings or spendings, and a note, or as much
	lastPart = 2*recordSize + noteSize

	// at a reply's end: the charge whose bookings are loose, its cost's
	// instant, the remaining budget, the debt, the instant of the next unit
	looseSize = 1 + 4*7
)

// A denial's note, after a state. Its size is not a multiple of a booking's, nor of a spending's in a log.
const (
	noteFrom   = idSize + 2*7   // after the figures and capacity of the call, and the cost
	noteDigest = noteFrom + 3*7 // after the two instants of the note's beginning and end, and the instant of the limit's change
	noteLoose  = noteDigest + digestSize - 1 - 7
	noteSize   = noteLoose + looseSize
	noteReply  = noteSize - noteDigest // the part for the reply of a later denial

	// noteStays is how long a valid note stays when the note of another call could replace it.
	noteStays = time.Second
)

// Bounds for stored data.
const (
	maxBooked   = 1024 // the maximum number of a key's bookings kept apart, each to be given back
	maxOpens    = 16   // the maximum number of a key's open reservations kept apart
	olderFlag   = 128  // added to their number if some are from before the last change and units are set aside
	maxQueued   = 2000 // the maximum number of spendings booked in a full log
	maxLooks    = 4096 // the maximum number of bookings that a call examines in search of room before them
	maxExpiry   = 1<<32 - 1
	generations = 1 << 24
)

// Times are whole microseconds. Numbers in scripts are doubles. All figures stay below 2^53, so
// scripts count them exactly. A leaky bucket whose maximum delay is most delays without bound.
const (
	century = 876_600 * 3600 * int64(1e6) // µs
	most    = micros.Most                 // the maximum of any count
)

// ordinalZero shifts the ordinals of windows, seconds since 1970, so all are above 0.
const ordinalZero = 1 << 37

// The request for one key: its parts' offsets.
const (
	chargeID     = 2                 // after the key's index and the class: the kind and the figures
	chargeFirst  = chargeID + idSize // five figures, depending on the kind, or the figures of the replaced booking
	chargeSecond = chargeFirst + 7
	chargeCost   = chargeFirst + 5*7 // cost, ahead, capacity, since
	chargeOwner  = chargeFirst + 3*7 // units in use: their owner
	chargeAhead  = chargeCost + 7
	chargeSince  = chargeCost + 3*7
	chargeSize   = chargeCost + 4*7
)

const (
	headSize   = 1 + 1 // the operation, and the number of keys
	settleSize = 3 + 3 + 4*7 + 1 + 4*7
	adjustSize = 3 + 5*7
	datesSize  = 9 * 7 // for one calendar, after all requests: per, prev, from, to, next, mean, windows, first, last
)

// The general case's reply for one key: its parts' offsets, after the verdict.
const (
	digestChanges = 3 // after gen
	digestNow     = 4
	digestAt      = 11
	digestN       = 18
	digestM       = 25
	digestNewest  = 32
	digestNext    = 39
	digestSize    = 1 + 46 // including the verdict
)

// The first byte of a call to the script that decides.
const (
	opTake = 0 // a booking ahead cannot be given back
	opPeek = 2
	opKeep = 4 // a booking ahead may be given back
	opOpen = 8 // as opKeep, and a settlement will bring the real cost

	// opBetween is opKeep, but the charge may go before bookings, loose
	// or not. It goes no earlier than an instant, the last 7 bytes.
	opBetween = 12
)

// The first byte of a call to the script that settles.
const (
	opSettle = 0
	opAdjust = 1
	opExtend = 2
	// opSettleOpen is opSettle for estimates, in a call following its keys.
	opSettleOpen = 3
)

// A charge's class in the usual case: a kind, or one of these.
const (
	howNothing = 0 // a charge of 0 among others
	howShadow  = 9 // a shadow layer's charge

	// howBefore is a charge in place of a booking. It may go before other bookings whether the state is loose or not.
	howBefore = 10

	// howBehind is a charge behind all bookings, loose or not.
	howBehind = 11
)

// An answer's first byte.
const (
	answerDenied    = 0
	answerAllowed   = 1
	answerWrongType = 2
	answerNotOurs   = 3
	answerOther     = 4
	answerOutside   = 5 // the call has no data about this time
	answerFull      = 6 // on one key: no more can be booked ahead
)

// How a request for slots is written, and the times in it. lua/slots.lua describes the set's format.
const (
	processSize     = 8 + 7 // random bytes, and the maximum silence of the process, in µs
	attemptSize     = 12
	slotRequestSize = processSize + attemptSize + 7 + 7 // the number of slots, and Hold; the text of the owner follows

	lineOffset  = 9_000_000_000_000_000 // with this offset, scores order the set: places in line, first times of permits, ends
	sinceOffset = 5_000_000_000_000_000

	// placeFor is how long a waiting process may be silent, in addition to Timeout.
	placeFor = time.Second

	// claimFor is how long slots are reserved for a waiting request, in addition to Timeout.
	claimFor = 200 * time.Millisecond

	// freshFor is how long after a call a waiting process gets slots without
	// a claim. If it stops within this time, it keeps these slots for Hold.
	freshFor = 50 * time.Millisecond

	// revokedFor is how long Redis refuses calls for a revoked request.
	revokedFor = 15 * time.Second

	// maxGrants is the maximum number of requests served by a call. maxDrops
	// is the maximum number of dead processes' requests skipped by it.
	maxGrants = 128
	maxDrops  = 1024
)

// How slots are taken.
const (
	howTry    = iota // without waiting
	howPoll          // waiting, without messages
	howListen        // waiting for a message
)

// A request's states, as scripts return them.
const (
	slotsWaiting = iota
	slotsTaken
	slotsLost    // it has neither slots nor a place in line
	slotsRevoked // it was given back before
	slotsLate    // the call arrived after its caller had gone
)

// A channel's states, as a beat returns them.
const (
	channelSilent   = iota // no process receives its messages
	channelReceived        // this process receives them
	channelRefused         // Redis refuses messages, because an ACL forbids them
)

// A [Fair] call's format.
const (
	fairProcess = 16 // bytes of a process's id
	fairLeasts  = 24 // the script's least debts
	fairLeaves  = 100
	fairZero    = int64(1) << 52 // stands for 0 in a reply's credit
)

// A tentative booking's record: its parts' offsets. lua/tentative.lua describes it.
const (
	recordAt      = tentative.NumberSize
	recordCost    = recordAt + 7
	recordGen     = recordCost + 7
	recordChanges = recordGen + 3
	recordKind    = recordChanges + 1

	tentativeSize = recordKind + 1
)

// names are the figures for scripts' texts. In a script, positions in a string count from 1.
var names = map[string]int64{
	"TOKEN": kindToken, "LEAKY": kindLeaky, "FIXED": kindFixed, "LOG": kindLog, "COUNTER": kindCounter, "CALENDAR": kindCalendar, "HELD": kindHeld,
	"ID_SIZE": idSize, "STATE_PER": statePer + 1, "STATE_N": stateN + 1, "STATE_GEN": stateGen + 1, "STATE_EXPIRY": stateExpiry + 1, "STATE_SIZE": stateSize,
	"STATE_M": stateM + 1, "WIDE_SIZE": wideSize, "RECORD_SIZE": recordSize, "FIRST_PART": firstPart, "FIRST_RECORDS": firstRecords, "FIRST_END": firstPart - 1, "LOG_DENIED": kindLog - asideFlag, "RECORD_SUM": recordSize - 6, "RECORD_LAST": recordSize - 13, "LAST_PART": lastPart, "LAST_NOTE": lastPart - noteSize + 1, "HEAD_PART": headPart, "HEAD_END": headPart - 1, "DUE_END": duePart - 1, "TAIL_PART": tailPart, "NOTED_TAIL": tailPart + noteSize, "BEFORE_NOTE": noteSize + 1, "BASE_SIZE": baseSize,
	"BOOKING_SIZE": bookingSize, "BOOKED": bookingSize - 1, "BOOKED_END": bookingSize - 6, "ASIDE": asideFlag, "ASIDE_SIZE": asideSize,
	"NOTE_SIZE": noteSize, "NOTE_FROM": noteFrom + 1, "NOTE_STAYS": inMicros(noteStays), "NOTE_DIGEST": noteDigest + 1, "NOTE_LOOSE": noteLoose + 1, "NOTE_BOOKED": noteSize % bookingSize, "NOTE_LOG": noteSize % recordSize, "NOTE_REPLY": noteReply, "LOOSE_SIZE": looseSize,
	"MAX_BOOKED": maxBooked, "MAX_QUEUED": maxQueued, "LOOKS": maxLooks, "MAX_EXPIRY": maxExpiry, "GENERATIONS": generations,
	"MOST": most, "TOP": 2 * most, "LATEST": 2*most - century, "CENTURY": century,
	"HEAD_SIZE": headSize, "CHARGE_ID": chargeID, "CHARGE_FIRST": chargeFirst, "CHARGE_SECOND": chargeSecond, "CHARGE_COST": chargeCost, "CHARGE_OWNER": chargeOwner, "CHARGE_AHEAD": chargeAhead, "CHARGE_SINCE": chargeSince, "CHARGE_SIZE": chargeSize,
	"SETTLE_SIZE": settleSize, "ADJUST_SIZE": adjustSize, "DIGEST_SIZE": digestSize,
	"TAKE": opTake, "PEEK": opPeek, "KEEP": opKeep, "OPEN": opOpen, "BETWEEN": opBetween, "OPEN_KIND": kindOpen, "MAX_OPENS": maxOpens, "OLDER": olderFlag, "ADJUST": opAdjust, "EXTEND": opExtend, "SETTLE_OPEN": opSettleOpen, "SHADOW": howShadow, "BEFORE": howBefore, "BEHIND": howBehind,
	"WRONG_TYPE": answerWrongType, "NOT_OURS": answerNotOurs, "OTHER": answerOther, "FULL": answerFull, "OUTSIDE": answerOutside,
	"TENTATIVE_FROM": inMicros(turns.Horizon), "TENTATIVE_SIZE": tentativeSize, "TENTATIVE_STAYS": tentative.Late.Milliseconds(),
	"BEATS_HOLD": inMicros(tentative.Holds), "TENTATIVE_LEAD": inMicros(2 * tentative.Every),
	"DATES_SIZE": datesSize, "ORDINAL_ZERO": ordinalZero,

	"PROCESS": processSize, "ATTEMPT": attemptSize, "REQUEST": slotRequestSize, "LINE": lineOffset, "SINCE": sinceOffset, "TICK": 1 << 16, "COUNT": 1 << 14,
	"PLACE_FOR": inMicros(placeFor), "CLAIM_FOR": inMicros(claimFor), "FRESH": inMicros(freshFor), "REVOKED_FOR": inMicros(revokedFor),
	"GRANTS": maxGrants, "DROPS": maxDrops, "TRY": howTry, "POLL": howPoll, "LISTEN": howListen,
	"WAITING": slotsWaiting, "TAKEN": slotsTaken, "LOST": slotsLost, "REVOKED": slotsRevoked, "LATE": slotsLate,
	"FAIR_PROCESS": fairProcess, "FAIR_LEASTS": fairLeasts, "FAIR_LEAVES": fairLeaves, "FAIR_ZERO": fairZero, "FAIR_HIGHEST": 1 << 50, "FAIR_LONGEST": 24 * 3600 * 1e6, "FRACTION": 1 << 20,
	"SILENT": channelSilent, "RECEIVED": channelReceived, "REFUSED": channelRefused,
}

var name = regexp.MustCompile(`\$\{?([A-Z_]+)\}?`)

// named returns a script's text with the figures in it.
func named(text string) string {
	return name.ReplaceAllStringFunc(text, func(s string) string {
		figure, ok := names[name.FindStringSubmatch(s)[1]]
		if !ok {
			panic("redislimit: a script uses the unknown figure " + s) // a bug in this package
		}
		return fmt.Sprint(figure)
	})
}

// head begins a call.
func head(b []byte, op byte, items int) []byte { return append(b, op, byte(items)) }

// put7 and put3 append a number for get7 and get3 to read.
func put7(b []byte, n int64) []byte {
	return append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func put3(b []byte, n uint32) []byte { return append(b, byte(n>>16), byte(n>>8), byte(n)) }

func get7(s string) int64 {
	return int64(s[0])<<48 | int64(s[1])<<40 | int64(s[2])<<32 | int64(s[3])<<24 | int64(s[4])<<16 | int64(s[5])<<8 | int64(s[6])
}

func get3(s string) uint32 { return uint32(s[0])<<16 | uint32(s[1])<<8 | uint32(s[2]) }

// inMicros returns a time in microseconds, as all times are sent.
func inMicros(d time.Duration) int64 { return int64(d / time.Microsecond) }
