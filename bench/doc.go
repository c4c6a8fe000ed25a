// Package bench measures real servers in processes of their own, which real RateLimitService clients drive
// and count from outside.
//
// Guarantee: every printed figure was measured in the run that prints it. Absolute times are those of the
// machine, and mean little elsewhere. Ratios come from alternating rounds of one run.
package bench
