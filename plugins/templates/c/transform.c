/* {{name}}: orders and their total per customer.
 * Build it with `restitch transform build .`, test it with `restitch transform test .`. */
#include "restitch.h"

/* What is read: columns of the source, under the names they have there. */
enum { ORDER_CUSTOMER, ORDER_AMOUNT };
static const restitch_field ORDER[] = {
    [ORDER_CUSTOMER] = {.name = "customer_id", .type = RESTITCH_STRING},
    [ORDER_AMOUNT] = {.name = "amount", .type = RESTITCH_DECIMAL, .precision = 18, .scale = 2, .nullable = true},
};
static const restitch_input INPUTS[] = {{.name = "orders", RESTITCH_LIST(fields, ORDER)}};

/* What is written. */
enum { TOTAL_CUSTOMER, TOTAL_ORDERS, TOTAL_TOTAL };
static const restitch_field TOTAL[] = {
    [TOTAL_CUSTOMER] = {.name = "customer_id", .type = RESTITCH_STRING},
    [TOTAL_ORDERS] = {.name = "orders", .type = RESTITCH_INT64},
    [TOTAL_TOTAL] = {.name = "total", .type = RESTITCH_DECIMAL, .precision = 38, .scale = 2},
};
static const char *const KEY[] = {"customer_id"};

/* The state. Every partition starts with a fresh one. */
typedef struct {
    int64_t orders;
    restitch_decimal total; /* in hundredths */
} sum;
static restitch_map customers = {.value_size = sizeof(sum)};

/* Called for each batch of rows. */
static restitch_status push(const restitch_batch *orders, restitch_output *output) {
    (void)output; /* rows could go back at once: restitch_put_…(output, …), restitch_end_row(output) */
    for (size_t row = 0; row < orders->rows; row++) {
        sum *s = restitch_map_at(&customers, restitch_get_bytes(orders, ORDER_CUSTOMER, row));
        s->orders++;
        /* A null reads as 0. */
        if (!restitch_decimal_add(s->total, restitch_get_decimal(orders, ORDER_AMOUNT, row), &s->total))
            return restitch_fail_row(row, "the total has more than 38 digits");
    }
    return RESTITCH_OK;
}

/* Called when there are no more rows. The order of the rows that it puts does not matter. */
static restitch_status finish(restitch_output *output) {
    for (size_t i = 0; i < customers.count; i++) {
        const sum *s = restitch_map_value(&customers, i);
        restitch_put_bytes(output, TOTAL_CUSTOMER, restitch_map_key(&customers, i));
        restitch_put_int64(output, TOTAL_ORDERS, s->orders);
        restitch_put_decimal(output, TOTAL_TOTAL, s->total);
        restitch_end_row(output);
    }
    return RESTITCH_OK;
}

const restitch_definition restitch_transform = {
    .name = "{{name}}",
    .version = "1.0.0",
    .summary = "Orders and their total per customer",
    RESTITCH_LIST(inputs, INPUTS),
    RESTITCH_LIST(output, TOTAL),
    RESTITCH_LIST(key, KEY),
    .push = push,
    .finish = finish,
};
