// Package zone finds time zones by their names, for rules and for what peers say of rules.
//
// Guarantee: one name is one zone for as long as the process lives, whatever becomes of the machine's files meanwhile.
// It does not promise that another machine has the same data for it. All functions are safe for concurrent use.
package zone

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// ErrUnknown says that there is no time zone of a name.
var ErrUnknown = errors.New("invalid time zone")

// named are the texts that may be a zone's name; the longest of the IANA database has 32 bytes. What Go takes for UTC,
// "", may not.
var named = regexp.MustCompile(`^[a-zA-Z0-9/_+-]{1,64}$`)

// none are files of zone databases that are no zones of the IANA's: another machine's
// may be other zones, and those below right/ count leap seconds.
var none = [...]string{"Local", "localtime", "posixrules", "posix/", "right/"}

// loaded are the zones that were found: at most as many as the machine has.
var loaded sync.Map // of *time.Location, by name

// Load returns the zone of an IANA name (Europe/Berlin, UTC): from the machine's time zone database, or else from the
// one in the binary, if it has one (package time/tzdata). It reads a file when a name is new.
func Load(name string) (*time.Location, error) {
	if known, ok := loaded.Load(name); ok {
		return known.(*time.Location), nil
	}
	strange := func(no string) bool { return strings.HasPrefix(name, no) }
	if !named.MatchString(name) || slices.ContainsFunc(none[:], strange) {
		return nil, fmt.Errorf("%w: %.70q is not in the IANA database: use a name such as America/New_York or UTC",
			ErrUnknown, name)
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: use a name of the IANA database, such as America/New_York or UTC", ErrUnknown,
			err)
	}
	known, _ := loaded.LoadOrStore(name, location)
	return known.(*time.Location), nil
}

// Calendar is the calendar of billing months that begin on a day of the month, 1 to 31, in the zone of that name.
func Calendar(day int, name string) (ratelimit.Calendar, error) {
	location, err := Load(name)
	if err != nil {
		return 0, err
	}
	return ratelimit.NewCalendar(day, location)
}
