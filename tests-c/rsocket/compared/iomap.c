/* riomap, riounmap and riowrite: offsets, errors, several mappings, the data. */
#define _GNU_SOURCE
#include "rscommon.h"

#include <sys/mman.h>

enum { SIZE = 20000 };

static struct rspair pair;
static unsigned char first[SIZE], second[SIZE], source[SIZE];

static void prepare(int fd)
{
	int entries = 4;

	SETUP(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
}

/* A byte that is sent shows that everything before it has arrived. */
static void flush(int from, int to)
{
	char byte;

	SETUP(rsend(from, "x", 1, 0) == 1);
	SETUP(rrecv(to, &byte, 1, 0) == 1);
}

static void before_connecting(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	topic("not connected");
	CALL((int)riomap(fd, first, SIZE, PROT_WRITE, 0, 0));
	CALL((int)riomap(fd, first, SIZE, PROT_NONE, 0, 0));
	CALL(riounmap(fd, first, SIZE));
	CALL(rclose(fd));
}

static void errors(void)
{
	topic("errors");
	CALL((int)riomap(pair.server, first, SIZE, PROT_READ, 0, 0));
	CALL((int)riomap(pair.server, first, SIZE, PROT_WRITE | PROT_READ, 0, 0));
	CALL((int)riomap(pair.server, first, SIZE, PROT_WRITE | PROT_EXEC, 0, 0));
	CALL(riounmap(pair.server, first, SIZE));
	CALL(riounmap(pair.server, NULL, 0));
	CALL((int)riowrite(pair.client, source, 10, 0, 0));
}

static void one_mapping(void)
{
	topic("one mapping");
	CALL((int)riomap(pair.server, first, SIZE, PROT_WRITE, 0, 0));
	flush(pair.server, pair.client);
	fill(source, SIZE, 1, 0);
	CALL((int)riowrite(pair.client, source, SIZE, 0, 0));
	flush(pair.client, pair.server);
	CHECK(filled(first, SIZE, 1, 0));
	memset(first, 0, SIZE);
	CALL((int)riowrite(pair.client, source, 10, 100, 0));
	CALL((int)riowrite(pair.client, source + 1, 1, SIZE - 1, 0));
	CALL((int)riowrite(pair.client, source, 0, 0, 0));
	flush(pair.client, pair.server);
	CHECK(filled(first + 100, 10, 1, 0));
	CHECK(first[99] == 0 && first[110] == 0 && first[SIZE - 1] == source[1]);
	CALL((int)riowrite(pair.client, source, 10, SIZE, 0));
	CALL((int)riowrite(pair.client, source, 10, SIZE + 5, 0));
}

static void two_mappings(void)
{
	topic("two mappings");
	CALL((int)riomap(pair.server, second, SIZE, PROT_WRITE, 0, 1 << 20));
	flush(pair.server, pair.client);
	fill(source, SIZE, 2, 0);
	CALL((int)riowrite(pair.client, source, SIZE, 1 << 20, 0));
	fill(source, SIZE, 3, 0);
	CALL((int)riowrite(pair.client, source, SIZE / 2, 50, 0));
	flush(pair.client, pair.server);
	CHECK(filled(second, SIZE, 2, 0));
	CHECK(filled(first + 50, SIZE / 2, 3, 0));
	CALL(riounmap(pair.server, first, SIZE));
	CALL(riounmap(pair.server, first, SIZE));
	flush(pair.server, pair.client);
	CALL((int)riowrite(pair.client, source, 100, 1 << 20, 0));
	flush(pair.client, pair.server);
	CHECK(filled(second, 100, 3, 0));
	CALL(riounmap(pair.server, second, SIZE));
}

/* The buffer's address is its offset. */
static void chosen_offset(void)
{
	off_t offset;

	topic("offset -1");
	offset = riomap(pair.server, first, SIZE, PROT_WRITE, 0, -1);
	CHECK(offset == (off_t)(uintptr_t)first);
	flush(pair.server, pair.client);
	fill(source, SIZE, 4, 0);
	CHECK(riowrite(pair.client, source, SIZE, offset, 0) == SIZE);
	flush(pair.client, pair.server);
	CHECK(filled(first, SIZE, 4, 0));
	CALL(riounmap(pair.server, first, SIZE));
}

/* Local registration: nothing that the peer could see. */
static void local_only(void)
{
	topic("PROT_NONE");
	CHECK(riomap(pair.client, source, SIZE, PROT_NONE, 0, 0) != -1);
	CALL((int)riomap(pair.server, first, SIZE, PROT_WRITE, 0, 0));
	flush(pair.server, pair.client);
	fill(source, SIZE, 5, 0);
	CALL((int)riowrite(pair.client, source, SIZE, 0, 0));
	flush(pair.client, pair.server);
	CHECK(filled(first, SIZE, 5, 0));
	CALL(riounmap(pair.client, source, SIZE));
	CALL(riounmap(pair.server, first, SIZE));
}

static void full_table(void)
{
	topic("full table");
	for (int i = 0; i < 6; i++)
		CALL((int)riomap(pair.server, first + i * 100, 100, PROT_WRITE, 0, i * 1000));
	flush(pair.server, pair.client);
	for (int i = 0; i < 6; i++)
		CALL(riounmap(pair.server, first + i * 100, 100));
}

/* The other end has no table. */
static void no_table(void)
{
	topic("no table");
	if (!rs_pair(&pair, AF_INET))
		return;
	CALL((int)riomap(pair.server, first, SIZE, PROT_WRITE, 0, 0));
	CALL((int)riomap(pair.client, first, SIZE, PROT_WRITE, 0, 0));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	before_connecting();
	topic("connect");
	if (rs_pair_with(&pair, AF_INET, prepare)) {
		errors();
		one_mapping();
		two_mappings();
		chosen_offset();
		local_only();
		full_table();
	}
	rs_pair_close(&pair);
	no_table();
	return finish();
}
