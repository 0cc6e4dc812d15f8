package restitch

import (
	"errors"
	"math/bits"
	"strings"
)

// JSON is a JSON document as text.
type JSON string

// Date counts days since 1970-01-01.
type Date int32

// Time counts microseconds since midnight.
type Time int64

// Timestamp counts microseconds since 1970-01-01T00:00:00Z.
type Timestamp int64

// Null is a value that may be missing. Without one, V is its type's zero.
type Null[T any] struct {
	V     T
	Valid bool
}

// Some returns a Null with a value.
func Some[T any](v T) Null[T] { return Null[T]{V: v, Valid: true} }

func (Null[T]) mayBeNull() {}

// Decimal is an exact number: how many of its smallest unit, in two's complement. 12.34 in a decimal(18,2) counts 1234.
type Decimal struct {
	Lo uint64
	Hi int64
}

// 10^38: a decimal has 38 digits at most.
const endHi, endLo = 0x4b3b4ca85a86c47a, 0x098a224000000000

// 10^19, the greatest power of ten in 64 bits.
const tenTo19 = 10_000_000_000_000_000_000

// DecimalOf returns the decimal that counts n of its smallest unit.
func DecimalOf(n int64) Decimal { return Decimal{Lo: uint64(n), Hi: n >> 63} }

// ParseDecimal reads digits with an optional sign and point as a decimal of that scale. It never rounds.
func ParseDecimal(text string, scale int) (Decimal, error) {
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "-"), "+")
	whole, fraction, _ := strings.Cut(digits, ".")
	if len(text)-len(digits) > 1 || whole+fraction == "" || len(fraction) > scale {
		return Decimal{}, errors.New("not a decimal number with at most the column's digits after the point: " + text)
	}
	var hi, lo uint64
	for _, c := range whole + fraction + strings.Repeat("0", scale-len(fraction)) {
		if c < '0' || c > '9' {
			return Decimal{}, errors.New("not a decimal number: " + text)
		}
		carry, low := bits.Mul64(lo, 10)
		low, more := bits.Add64(low, uint64(c-'0'), 0)
		hi, lo = hi*10+carry+more, low
		if hi > endHi || (hi == endHi && lo >= endLo) {
			return Decimal{}, errors.New("more than 38 digits: " + text)
		}
	}
	d := Decimal{Lo: lo, Hi: int64(hi)}
	if strings.HasPrefix(text, "-") {
		d = d.Neg()
	}
	return d, nil
}

// Add returns a + b, and false if the sum has more than 38 digits.
func (a Decimal) Add(b Decimal) (Decimal, bool) {
	sum, wrapped := a.AddWrapping(b)
	return sum, !wrapped && sum.fits()
}

// AddWrapping returns a + b modulo 2^128, and whether that is not a + b: for sums that leave 38 digits and come back.
func (a Decimal) AddWrapping(b Decimal) (Decimal, bool) {
	lo, carry := bits.Add64(a.Lo, b.Lo, 0)
	hi := a.Hi + b.Hi + int64(carry)
	return Decimal{lo, hi}, (a.Hi < 0) == (b.Hi < 0) && (hi < 0) != (a.Hi < 0)
}

// Sub returns a - b, and false if the difference has more than 38 digits.
func (a Decimal) Sub(b Decimal) (Decimal, bool) { return a.Add(b.Neg()) }

// Neg returns -a.
func (a Decimal) Neg() Decimal {
	lo, borrow := bits.Sub64(0, a.Lo, 0)
	return Decimal{lo, -a.Hi - int64(borrow)}
}

// Cmp returns -1, 0 or 1: a is less than, equal to, greater than b. Both must have the same scale.
func (a Decimal) Cmp(b Decimal) int {
	switch {
	case a == b:
		return 0
	case a.Hi < b.Hi || (a.Hi == b.Hi && a.Lo < b.Lo):
		return -1
	}
	return 1
}

// Sign returns -1, 0 or 1.
func (a Decimal) Sign() int { return a.Cmp(Decimal{}) }

func (a Decimal) fits() bool {
	if a.Hi < 0 {
		a = a.Neg()
	}
	// What is its own negation, the least number of all, stays negative.
	return a.Hi >= 0 && (a.Hi < endHi || (a.Hi == endHi && a.Lo < endLo))
}

// Text returns the number with that many digits after the point.
func (a Decimal) Text(scale int) string {
	sign := ""
	if a.Hi < 0 {
		sign, a = "-", a.Neg()
	}
	var digits []byte
	hi, lo := uint64(a.Hi), a.Lo
	for part := 0; part < 3 && (hi != 0 || lo != 0); part++ {
		high, rest := hi/tenTo19, hi%tenTo19
		low, nineteen := bits.Div64(rest, lo, tenTo19)
		hi, lo = high, low
		for i := 0; i < 19; i++ {
			digits = append(digits, byte('0'+nineteen%10))
			nineteen /= 10
		}
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
	}
	for len(digits) <= scale {
		digits = append(digits, '0')
	}
	for i, j := 0, len(digits)-1; i < j; i, j = i+1, j-1 {
		digits[i], digits[j] = digits[j], digits[i]
	}
	whole := len(digits) - scale
	if scale <= 0 {
		return sign + string(digits)
	}
	return sign + string(digits[:whole]) + "." + string(digits[whole:])
}
