package connectlimit

// UsualOutcome is what an adaptive limit usually learns.
var UsualOutcome = usualOutcome
