package connectlimit

// UsualOutcome is the default outcome of a call for an adaptive limit.
var UsualOutcome = usualOutcome
