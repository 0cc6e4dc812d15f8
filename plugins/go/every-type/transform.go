// every-type 1.0.0: every column type there and back; the same transform exists in every language with an SDK.
// Never changes a value; tests/languages.rs compares what the languages return, byte for byte.
package main

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"restitch"
)

// Row is what is read.
type Row struct {
	ID    int64                             `restitch:"id"`
	Flag  restitch.Null[bool]               `restitch:"flag"`
	I32   restitch.Null[int32]              `restitch:"i32"`
	I64   restitch.Null[int64]              `restitch:"i64"`
	F32   restitch.Null[float32]            `restitch:"f32"`
	F64   restitch.Null[float64]            `restitch:"f64"`
	Dec   restitch.Null[restitch.Decimal]   `restitch:"dec,decimal(38,9)"`
	Text  restitch.Null[string]             `restitch:"text"`
	Doc   restitch.Null[restitch.JSON]      `restitch:"doc"`
	Bytes restitch.Null[[]byte]             `restitch:"bytes"`
	Day   restitch.Null[restitch.Date]      `restitch:"day"`
	At    restitch.Null[restitch.Time]      `restitch:"at"`
	TS    restitch.Null[restitch.Timestamp] `restitch:"ts"`
}

// Name is a row of the lookup.
type Name struct {
	Key  int64                 `restitch:"key"`
	Name restitch.Null[string] `restitch:"name"`
}

// Written is what is returned: the row, and what the partition adds.
type Written struct {
	ID    int64                             `restitch:"id"`
	Flag  restitch.Null[bool]               `restitch:"flag"`
	I32   restitch.Null[int32]              `restitch:"i32"`
	I64   restitch.Null[int64]              `restitch:"i64"`
	F32   restitch.Null[float32]            `restitch:"f32"`
	F64   restitch.Null[float64]            `restitch:"f64"`
	Dec   restitch.Null[restitch.Decimal]   `restitch:"dec,decimal(38,9)"`
	Text  restitch.Null[string]             `restitch:"text"`
	Doc   restitch.Null[restitch.JSON]      `restitch:"doc"`
	Bytes restitch.Null[[]byte]             `restitch:"bytes"`
	Day   restitch.Null[restitch.Date]      `restitch:"day"`
	At    restitch.Null[restitch.Time]      `restitch:"at"`
	TS    restitch.Null[restitch.Timestamp] `restitch:"ts"`
	Name  restitch.Null[string]             `restitch:"name"`
	Seen  int64                             `restitch:"seen"`
	Label string                            `restitch:"label"`
	Start restitch.Timestamp                `restitch:"start"`
	Seed  int64                             `restitch:"seed"`
}

const names = 1

type everyType struct {
	context *restitch.Context
	names   map[int64]restitch.Null[string]
	seen    int64
	i64     int64
	// The sum is wraps times 2^128 and dec: exact, however the rows lie.
	dec    restitch.Decimal
	wraps  int
	firsts strings.Builder
}

func init() {
	restitch.Export(restitch.Definition{
		Name:    "every-type",
		Version: "1.0.0",
		Summary: "Returns every row as it came, and what they sum to",
		Inputs:  []restitch.Input{restitch.InputOf[Row]("rows"), restitch.InputOf[Name]("names")},
		Output:  restitch.FieldsOf[Written](),
		Key:     []string{"id"},
		Parameters: []restitch.Parameter{
			{Name: "label", Default: "none", Help: "what the column `label` says"},
			{Name: "scale", Default: "1", Help: "a whole number"},
		},
		Begin: begin,
	})
}

func begin(c *restitch.Context) (restitch.Transform, error) {
	if _, err := strconv.ParseInt(c.Parameter("scale"), 10, 64); err != nil {
		return nil, restitch.ParameterError("scale: not a whole number")
	}
	restitch.Info("begin " + c.Partition)
	return &everyType{context: c, names: map[int64]restitch.Null[string]{}}, nil
}

func (t *everyType) Push(batch *restitch.Batch, output *restitch.Output) error {
	if batch.Input == names {
		for _, n := range restitch.Rows[Name](batch) {
			n.Name.V = strings.Clone(n.Name.V)
			t.names[n.Key] = n.Name
		}
		return nil
	}
	for i, r := range restitch.Rows[Row](batch) {
		switch r.Text.V {
		case "refuse":
			return restitch.RowError(i, "refused")
		case "panic":
			panic("boom")
		case "loop":
			for {
			}
		case "grow":
			for kept := [][]byte{}; ; {
				kept = append(kept, make([]byte, 1<<20))
			}
		}
		restitch.Put(output, Written{
			r.ID, r.Flag, r.I32, r.I64, r.F32, r.F64, r.Dec, r.Text, r.Doc, r.Bytes, r.Day, r.At, r.TS,
			t.names[r.ID], t.seen, t.context.Parameter("label"), restitch.Timestamp(t.context.StartMicros), int64(t.context.Seed),
		})
		t.add(&r)
	}
	return nil
}

func (t *everyType) add(r *Row) {
	t.seen++
	t.i64 += r.I64.V
	sum, wrapped := t.dec.AddWrapping(r.Dec.V)
	if wrapped {
		t.wraps += r.Dec.V.Sign()
	}
	t.dec = sum
	if r.Text.V != "" {
		first, _ := utf8.DecodeRuneInString(r.Text.V)
		t.firsts.WriteRune(first)
	}
}

func (t *everyType) Finish(output *restitch.Output) error {
	dec, fits := t.dec.Add(restitch.Decimal{})
	if t.wraps != 0 || !fits {
		return errors.New("decimal overflow")
	}
	restitch.Put(output, Written{
		ID: -1, I64: restitch.Some(t.i64), Dec: restitch.Some(dec), Text: restitch.Some(t.firsts.String()),
		Seen: t.seen, Label: t.context.Parameter("label"), Start: restitch.Timestamp(t.context.StartMicros), Seed: int64(t.context.Seed),
	})
	return nil
}

func main() {}
