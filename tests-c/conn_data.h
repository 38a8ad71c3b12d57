/* The private data with which rsockets connect (protocol version 1). */
#ifndef TESTS_C_CONN_DATA_H
#define TESTS_C_CONN_DATA_H

#include <stdint.h>

struct region {
	uint64_t addr;
	uint32_t key, length;
};
/* Private data of a request and of a reply: all in network order. */
struct conn_data {
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], iomap_size;
	struct region sgl, buffer;
};
_Static_assert(sizeof(struct conn_data) == 40, "as on the wire");

#endif
