package connectlimit

// UsualOutcome is a call's default outcome for an adaptive limit.
var UsualOutcome = usualOutcome
