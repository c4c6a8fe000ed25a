// Package bench measures: real servers in processes of their own, driven by
// real RateLimitService clients, counted from outside.
//
// Guarantee: what it prints was measured in the run that prints it. Absolute
// times are those of the machine it ran on and mean little elsewhere; ratios
// come from alternating rounds of one run.
package bench
