package restitch

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// Batch is some rows that were pushed.
type Batch struct {
	// Input is the index of the input it belongs to.
	Input   int
	rows    int
	fields  []Field
	columns []Column
}

// Len returns how many rows it has.
func (b *Batch) Len() int { return b.rows }

// Column returns the column with that index: for transforms that think in columns.
func (b *Batch) Column(index int) *Column { return &b.columns[index] }

// Output takes the rows that go back.
type Output struct {
	columns []Builder
	fields  []Field
	layout  *layout // the one that Put has checked last
	more    bool
}

// Column returns the column with that index: for transforms that think in columns. All must end with equal lengths.
func (o *Output) Column(index int) *Builder { return &o.columns[index] }

// Len returns how many rows wait to be handed on.
func (o *Output) Len() int {
	if len(o.columns) == 0 {
		return 0
	}
	return o.columns[0].rows
}

// More asks, inside Finish, that the rows so far are handed on and Finish is called again.
func (o *Output) More() { o.more = true }

func newOutput(fields []Field) *Output {
	o := &Output{columns: make([]Builder, len(fields)), fields: fields}
	for i := range fields {
		o.columns[i].Field = &fields[i]
	}
	return o
}

func (o *Output) reset() {
	o.more = false
	for i := range o.columns {
		o.columns[i].reset()
	}
}

// member is where a field of a struct lies, and what it is as a column.
type member struct {
	offset uintptr
	valid  uintptr // where Valid of a Null lies
}

// layout is a struct as columns.
type layout struct {
	row     reflect.Type
	fields  []Field
	members []member
}

var layouts = map[reflect.Type]*layout{}

type nullable interface{ mayBeNull() }

// Why a struct cannot be a row is a mistake of its author: it ends the instance with the place.
func layoutOf(row reflect.Type) *layout {
	if l := layouts[row]; l != nil {
		return l
	}
	if row.Kind() != reflect.Struct {
		panic("a row is a struct, and " + row.String() + " is none")
	}
	l := &layout{row: row}
	for i := range row.NumField() {
		f := row.Field(i)
		name, spec, _ := strings.Cut(f.Tag.Get("restitch"), ",")
		if name == "" {
			panic(row.String() + "." + f.Name + " has no tag such as `restitch:\"column_name\"`")
		}
		column, m := Field{Name: name}, member{offset: f.Offset}
		t := f.Type
		if t.Implements(reflect.TypeFor[nullable]()) {
			column.Nullable = true
			m.valid = f.Offset + t.Field(1).Offset
			t = t.Field(0).Type
		}
		column.Type = typeOf(t, row.String()+"."+f.Name)
		if (column.Type == DecimalType) != (spec != "") {
			panic(row.String() + "." + f.Name + ": a Decimal, and nothing else, has its digits in the tag: `restitch:\"" + name + ",decimal(18,2)\"`")
		}
		if spec != "" {
			column.Precision, column.Scale = digits(spec, row.String()+"."+f.Name)
		}
		l.fields, l.members = append(l.fields, column), append(l.members, m)
	}
	layouts[row] = l
	return l
}

func digits(spec, place string) (uint8, int8) {
	inside, isCall := strings.CutPrefix(strings.TrimSuffix(spec, ")"), "decimal(")
	before, after, _ := strings.Cut(inside, ",")
	precision, err1 := strconv.ParseUint(strings.TrimSpace(before), 10, 8)
	scale, err2 := strconv.ParseInt(strings.TrimSpace(after), 10, 8)
	if !isCall || err1 != nil || err2 != nil {
		panic(place + ": " + spec + " is not of the form decimal(18,2)")
	}
	return uint8(precision), int8(scale)
}

func typeOf(t reflect.Type, place string) Type {
	switch t {
	case reflect.TypeFor[bool]():
		return Boolean
	case reflect.TypeFor[int32]():
		return Int32
	case reflect.TypeFor[int64]():
		return Int64
	case reflect.TypeFor[float32]():
		return Float32
	case reflect.TypeFor[float64]():
		return Float64
	case reflect.TypeFor[Decimal]():
		return DecimalType
	case reflect.TypeFor[string]():
		return String
	case reflect.TypeFor[JSON]():
		return JSONType
	case reflect.TypeFor[[]byte]():
		return Binary
	case reflect.TypeFor[Date]():
		return DateType
	case reflect.TypeFor[Time]():
		return TimeType
	case reflect.TypeFor[Timestamp]():
		return TimestampType
	}
	panic(place + ": there is no column type for " + t.String())
}

// FieldsOf returns the columns of the struct T.
func FieldsOf[T any]() []Field { return layoutOf(reflect.TypeFor[T]()).fields }

// InputOf returns the input of that name with rows of type T.
func InputOf[T any](name string) Input { return Input{Name: name, Fields: FieldsOf[T]()} }

// Rows returns the rows of a batch. T must have the columns that the input was declared with. Texts and bytes are
// borrowed from the batch, and keep it in memory: clone what you keep for long.
func Rows[T any](b *Batch) []T {
	l := layoutOf(reflect.TypeFor[T]())
	if !slices.Equal(l.fields, b.fields) {
		panic(l.row.String() + " does not have the columns of the input")
	}
	rows := make([]T, b.rows)
	if b.rows > 0 {
		for i, m := range l.members {
			read(&b.columns[i], unsafe.Pointer(&rows[0]), l.row.Size(), m)
		}
	}
	return rows
}

func read(c *Column, base unsafe.Pointer, size uintptr, m member) {
	if c.Field.Nullable {
		for row := range c.rows {
			*at[bool](base, m.valid, size, row) = !c.IsNull(row)
		}
	}
	switch c.Field.Type {
	case Boolean:
		for row := range c.rows {
			*at[bool](base, m.offset, size, row) = c.bit(row)
		}
	case Int32, Float32, DateType:
		readFixed[uint32](c, base, size, m)
	case DecimalType:
		readFixed[Decimal](c, base, size, m)
	case String, JSONType:
		for row := range c.rows {
			*at[string](base, m.offset, size, row) = c.text(row)
		}
	case Binary:
		for row := range c.rows {
			*at[[]byte](base, m.offset, size, row) = c.bytes(row)
		}
	default:
		readFixed[uint64](c, base, size, m)
	}
}

func readFixed[T any](c *Column, base unsafe.Pointer, size uintptr, m member) {
	for row, v := range cast[T](c.values) {
		*at[T](base, m.offset, size, row) = v
	}
}

// at returns where a member of a row lies: `size` bytes from row to row.
func at[T any](base unsafe.Pointer, offset, size uintptr, row int) *T {
	return (*T)(unsafe.Add(base, offset+size*uintptr(row)))
}

// Put adds rows to the output. T must have the columns that were declared as Output.
func Put[T any](o *Output, rows ...T) {
	if len(rows) == 0 {
		return
	}
	l := o.layout
	if row := reflect.TypeFor[T](); l == nil || l.row != row {
		l = layoutOf(row)
		if !slices.Equal(l.fields, o.fields) {
			panic(row.String() + " does not have the columns of the output")
		}
		o.layout = l
	}
	for i, m := range l.members {
		write(&o.columns[i], unsafe.Pointer(&rows[0]), l.row.Size(), m, len(rows))
	}
}

func write(b *Builder, base unsafe.Pointer, size uintptr, m member, rows int) {
	for row := range rows {
		if b.Field.Nullable && !*at[bool](base, m.valid, size, row) {
			b.Null()
			continue
		}
		switch b.Field.Type {
		case Boolean:
			b.putBit(*at[bool](base, m.offset, size, row))
		case Int32, Float32, DateType:
			b.put32(*at[uint32](base, m.offset, size, row))
		case DecimalType:
			d := at[Decimal](base, m.offset, size, row)
			b.put64(d.Lo)
			b.put64(uint64(d.Hi))
		case String, JSONType:
			text := *at[string](base, m.offset, size, row)
			b.putBytes(unsafe.Slice(unsafe.StringData(text), len(text)))
		case Binary:
			b.putBytes(*at[[]byte](base, m.offset, size, row))
		default:
			b.put64(*at[uint64](base, m.offset, size, row))
		}
		b.mark(true)
	}
}
