// {{name}}: orders and their total per customer.
// Build it with `restitch transform build .`, test it with `restitch transform test .`.
package main

import (
	"strings"

	"restitch"
)

// Order is what is read: columns of the source, under the names they have there.
type Order struct {
	Customer string                          `restitch:"customer_id"`
	Amount   restitch.Null[restitch.Decimal] `restitch:"amount,decimal(18,2)"`
}

// Total is what is written.
type Total struct {
	Customer string           `restitch:"customer_id"`
	Orders   int64            `restitch:"orders"`
	Total    restitch.Decimal `restitch:"total,decimal(38,2)"`
}

// Totals is the state. Every partition starts with a fresh one.
type Totals struct {
	customers map[string]*Total
}

func init() {
	restitch.Export(restitch.Definition{
		Name:    "{{name}}",
		Version: "1.0.0",
		Summary: "Orders and their total per customer",
		Inputs:  []restitch.Input{restitch.InputOf[Order]("orders")},
		Output:  restitch.FieldsOf[Total](),
		Key:     []string{"customer_id"},
		Begin: func(*restitch.Context) (restitch.Transform, error) {
			return &Totals{customers: map[string]*Total{}}, nil
		},
	})
}

// Push is called for each batch of rows. Rows could go back at once: restitch.Put(output, row).
func (t *Totals) Push(batch *restitch.Batch, output *restitch.Output) error {
	for row, order := range restitch.Rows[Order](batch) {
		total := t.customers[order.Customer]
		if total == nil {
			// Text of a row is borrowed from the batch: a copy keeps the batch from staying in memory.
			id := strings.Clone(order.Customer)
			total = &Total{Customer: id}
			t.customers[id] = total
		}
		total.Orders++
		// A null reads as 0.
		sum, ok := total.Total.Add(order.Amount.V)
		if !ok {
			return restitch.RowError(row, "the total has more than 38 digits")
		}
		total.Total = sum
	}
	return nil
}

// Finish is called when there are no more rows. The order of the rows that it puts does not matter.
func (t *Totals) Finish(output *restitch.Output) error {
	for _, total := range t.customers {
		restitch.Put(output, *total)
	}
	return nil
}

func main() {}
