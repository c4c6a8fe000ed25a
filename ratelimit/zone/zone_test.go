package zone

import (
	"errors"
	"strings"
	"testing"
)

func TestZonesAreFoundByTheirNames(t *testing.T) {
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Port-au-Prince", "Etc/GMT+12"} {
		first, err := Load(name)
		if err != nil || first.String() != name {
			t.Fatalf("%s: %v, %v", name, first, err)
		}
		if again, err := Load(name); again != first || err != nil {
			t.Errorf("%s is another zone the second time (%v)", name, err)
		}
	}
	for name, want := range map[string]string{
		"":                      `"" is not in the IANA database: use a name such as America/New_York`,
		"Local":                 `"Local" is not in`,
		"localtime":             `"localtime" is not in`,
		"right/Europe/Berlin":   `"right/Europe/Berlin" is not in`,
		"../passwd":             `"../passwd" is not in`,
		"New York":              `"New York" is not in`,
		strings.Repeat("x", 65): "is not in",
		"Europe/Berln":          "unknown time zone Europe/Berln: use a name of the IANA database",
	} {
		if got, err := Load(name); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: %v, %v, want %s", name, got, err, want)
		}
	}
}
