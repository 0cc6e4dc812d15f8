package restitch

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestDecimalsAreReadAndWrittenExactly(t *testing.T) {
	most := strings.Repeat("9", 38)
	for _, c := range []struct {
		text  string
		scale int
		want  string
	}{
		{"0", 0, "0"}, {"0", 2, "0.00"}, {"-0.01", 2, "-0.01"}, {"+12.5", 2, "12.50"}, {".5", 1, "0.5"}, {"100", 0, "100"},
		{most, 0, most}, {"-" + most, 0, "-" + most}, {"18446744073709551616", 0, "18446744073709551616"},
		{"12345678901234567890123456789.012345678", 9, "12345678901234567890123456789.012345678"},
	} {
		d, err := ParseDecimal(c.text, c.scale)
		if err != nil || d.Text(c.scale) != c.want {
			t.Errorf("%s: %s, %v", c.text, d.Text(c.scale), err)
		}
	}
	for _, bad := range []string{"", "-", ".", "1.234", "1e3", "--1", "1" + most, "0x1", " 1"} {
		if d, err := ParseDecimal(bad, 2); err == nil {
			t.Errorf("%q was read as %s", bad, d.Text(2))
		}
	}
}

func TestSumsPastTheLastDigitAreSeen(t *testing.T) {
	most, _ := ParseDecimal(strings.Repeat("9", 38), 0)
	one := DecimalOf(1)
	if _, ok := most.Add(one); ok {
		t.Error("39 digits")
	}
	if sum, ok := most.Add(one.Neg()); !ok || sum.Cmp(most) != -1 {
		t.Error("one less than the most")
	}
	if d, ok := DecimalOf(math.MinInt64).Sub(one); !ok || d.Text(0) != "-9223372036854775809" || d.Sign() != -1 {
		t.Error(d.Text(0))
	}
	if _, wrapped := (Decimal{math.MaxUint64, math.MaxInt64}).AddWrapping(one); !wrapped {
		t.Error("2^127 is not in 128 bits")
	}
}

type row struct {
	ID   int64         `restitch:"id"`
	Flag Null[bool]    `restitch:"flag"`
	Cost Null[Decimal] `restitch:"cost,decimal(18,2)"`
	Text Null[string]  `restitch:"text"`
	Raw  []byte        `restitch:"raw"`
	Day  Null[Date]    `restitch:"day"`
	F    float32       `restitch:"f"`
}

// batchOf makes a batch of what was put.
func batchOf(o *Output) *Batch {
	b := &Batch{rows: o.Len(), fields: o.fields}
	for i := range o.columns {
		c := &o.columns[i]
		column := Column{Field: c.Field, rows: c.rows, offsets: cast[int32](c.offsets), values: c.values}
		if c.nulls > 0 {
			column.validity = c.validity
		}
		b.columns = append(b.columns, column)
	}
	return b
}

func TestRowsComeBackAsTheyWere(t *testing.T) {
	rows := []row{{ID: math.MinInt64, Raw: []byte{}}}
	for i := range 20 {
		rows = append(rows, row{
			int64(i), Null[bool]{i%2 == 0, true}, Null[Decimal]{DecimalOf(-7), i%3 > 0}, Some(strings.Repeat("ü", i)), []byte{0, 255}, Some(Date(-i)), 0.5,
		})
	}
	for i := range rows {
		if !rows[i].Cost.Valid {
			rows[i].Cost.V = Decimal{}
		}
	}
	o := newOutput(FieldsOf[row]())
	Put(o, rows...)
	got := Rows[row](batchOf(o))
	same := func(a, b row) bool {
		raw := slices.Equal(a.Raw, b.Raw)
		a.Raw, b.Raw = nil, nil
		return raw && a.ID == b.ID && a.Flag == b.Flag && a.Cost == b.Cost && a.Text == b.Text && a.Day == b.Day && a.F == b.F
	}
	if !slices.EqualFunc(rows, got, same) {
		t.Errorf("%v\n%v", rows, got)
	}
	// Column by column is the same.
	p := newOutput(FieldsOf[row]())
	for _, r := range rows {
		Put(p, r)
	}
	if !slices.Equal(o.Column(0).values, p.Column(0).values) || !slices.Equal(o.Column(3).offsets, p.Column(3).offsets) {
		t.Error("one by one is not the same as all at once")
	}
}

func TestMistakesAreNamed(t *testing.T) {
	says := func(part string, f func()) {
		defer func() {
			if text, _ := recover().(string); !strings.Contains(text, part) {
				t.Errorf("%q lacks %q", text, part)
			}
		}()
		f()
	}
	says("restitch.bad.X has no tag", func() {
		type bad struct{ X int64 }
		FieldsOf[bad]()
	})
	says("no column type for int", func() {
		type bad struct {
			X int `restitch:"x"`
		}
		FieldsOf[bad]()
	})
	says("decimal(18,2)", func() {
		type bad struct {
			X Decimal `restitch:"x"`
		}
		FieldsOf[bad]()
	})
	o := newOutput(FieldsOf[row]())
	says("output column id is int64, not string", func() { o.Column(0).Text("a") })
	says("may hold no nulls", func() { o.Column(0).Null() })
	says("does not have the columns of the output", func() {
		type other struct {
			ID int64 `restitch:"id"`
		}
		Put(o, other{1})
	})
}
