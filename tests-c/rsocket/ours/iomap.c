/* riomap and riowrite where the reference fails or cannot be compared; run on ours only. */
#include "cases.h"
#include "rscommon.h"

#include <sys/mman.h>

enum { SIZE = 10000 };

static struct rspair pair;
static unsigned char region[2][SIZE], source[2 * SIZE];

static void with_table(int fd)
{
	int entries = 8;

	SETUP(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
}

/* The smallest queues: a lost credit is noticed soon. */
static void with_few_credits(int fd)
{
	int entries = 16;

	with_table(fd);
	SETUP(!rsetsockopt(fd, SOL_RDMA, RDMA_RQSIZE, &entries, sizeof(entries)));
	SETUP(!rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &entries, sizeof(entries)));
}

static void one_byte(int from, int to)
{
	char byte;

	EXPECT(rsend(from, "x", 1, 0) == 1);
	EXPECT(rrecv(to, &byte, 1, 0) == 1);
}

/* Each advertised mapping is a message, and uses a credit as data does. */
static void announcements_are_counted(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, with_few_credits));
	for (int i = 0; i < 300; i++) {
		EXPECT(riomap(pair.server, region[0], SIZE, PROT_WRITE, 0, i) == i);
		one_byte(pair.server, pair.client);
		EXPECT(riowrite(pair.client, source, 10, i, 0) == 10);
		one_byte(pair.client, pair.server);
		EXPECT(!riounmap(pair.server, region[0], SIZE));
	}
	rs_pair_close(&pair);
}

/* Only mappings, then data: they must not exhaust the credits. */
static void announcements_alone(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, with_few_credits));
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 8; i++)
			EXPECT(riomap(pair.server, region[0] + i, 1, PROT_WRITE, 0, i) == i);
		one_byte(pair.server, pair.client);
		for (int i = 0; i < 8; i++)
			EXPECT(!riounmap(pair.server, region[0] + i, 1));
	}
	one_byte(pair.client, pair.server);
	rs_pair_close(&pair);
}

/* A write that runs over the end stops there; one that begins outside writes nothing. */
static void over_the_end(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, with_table));
	memset(region, 0, sizeof(region));
	EXPECT(riomap(pair.server, region[0], SIZE, PROT_WRITE, 0, 500) == 500);
	one_byte(pair.server, pair.client);
	fill(source, sizeof(source), 1, 0);
	EXPECT(riowrite(pair.client, source, SIZE + 100, 500, 0) == SIZE);
	EXPECT(riowrite(pair.client, source, 10, 499, 0) == 0);
	EXPECT(riowrite(pair.client, source, 10, SIZE + 500, 0) == 0);
	one_byte(pair.client, pair.server);
	EXPECT(filled(region[0], SIZE, 1, 0) && region[1][0] == 0);
	rs_pair_close(&pair);
}

/* A write spans two adjacent regions. */
static void across_two(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, with_table));
	memset(region, 0, sizeof(region));
	EXPECT(riomap(pair.server, region[1], SIZE, PROT_WRITE, 0, SIZE) == SIZE);
	EXPECT(riomap(pair.server, region[0], SIZE, PROT_WRITE, 0, 0) == 0);
	one_byte(pair.server, pair.client);
	fill(source, sizeof(source), 2, 0);
	EXPECT(riowrite(pair.client, source, 2 * SIZE, 0, 0) == 2 * SIZE);
	one_byte(pair.client, pair.server);
	EXPECT(filled(region[0], SIZE, 2, 0) && filled(region[1], SIZE, 2, SIZE));
	rs_pair_close(&pair);
}

/* A removed mapping cannot be written to, and the connection still works. */
static void ended_mapping(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, with_table));
	EXPECT(riomap(pair.server, region[0], SIZE, PROT_WRITE, 0, 0) == 0);
	one_byte(pair.server, pair.client);
	EXPECT_ERROR(riounmap(pair.server, region[0], SIZE - 1), EINVAL);
	EXPECT_ERROR(riounmap(pair.server, region[0] + 1, SIZE), EINVAL);
	EXPECT(!riounmap(pair.server, region[0], SIZE));
	one_byte(pair.server, pair.client);
	EXPECT(riowrite(pair.client, source, 10, 0, 0) == 0);
	one_byte(pair.client, pair.server);
	EXPECT(riomap(pair.server, region[1], SIZE, PROT_WRITE, 0, 0) == 0);
	one_byte(pair.server, pair.client);
	EXPECT(riowrite(pair.client, source, SIZE, 0, 0) == SIZE);
	one_byte(pair.client, pair.server);
	EXPECT(!memcmp(region[1], source, SIZE));
	rs_pair_close(&pair);
}

static void with_two(int fd)
{
	int entries = 2;

	SETUP(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
}

/* The same memory at two offsets: the first mapping ends, the other stays. */
static void unmapping_one_of_two(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, with_two));
	memset(region, 0, sizeof(region));
	EXPECT(riomap(pair.server, region[0], SIZE, PROT_WRITE, 0, 0) == 0);
	EXPECT(riomap(pair.server, region[0], SIZE, PROT_WRITE, 0, SIZE) == SIZE);
	one_byte(pair.server, pair.client);
	EXPECT(!riounmap(pair.server, region[0], SIZE));
	one_byte(pair.server, pair.client);
	fill(source, sizeof(source), 4, 0);
	EXPECT(riowrite(pair.client, source, SIZE, 0, 0) == 0);
	EXPECT(riowrite(pair.client, source, SIZE, SIZE, 0) == SIZE);
	one_byte(pair.client, pair.server);
	EXPECT(filled(region[0], SIZE, 4, 0));
	EXPECT(!riounmap(pair.server, region[0], SIZE));
	EXPECT_ERROR(riounmap(pair.server, region[0], SIZE), EINVAL);
	one_byte(pair.server, pair.client);
	EXPECT(riowrite(pair.client, source, 10, SIZE, 0) == 0);
	rs_pair_close(&pair);
}

static void *writes(void *argument)
{
	for (int i = 0; i < 50; i++) {
		if (riowrite(pair.client, argument, SIZE, 0, 0) != SIZE)
			return NULL;
		if (rsend(pair.client, "0123456789", 10, 0) != 10)
			return NULL;
	}
	return argument;
}

/* Writes into the region and data of the stream, by turns, while the peer sends as well: no more than it has credits for,
 * because nobody reads until the other thread is through. */
static void with_traffic(void)
{
	enum { MESSAGES = 10 };
	char buf[500];
	pthread_t thread;
	void *ret;

	EXPECT(rs_pair_with(&pair, AF_INET, with_few_credits));
	EXPECT(riomap(pair.server, region[0], SIZE, PROT_WRITE, 0, 0) == 0);
	one_byte(pair.server, pair.client);
	fill(source, sizeof(source), 3, 0);
	EXPECT(!pthread_create(&thread, NULL, writes, source));
	for (int i = 0; i < MESSAGES; i++)
		EXPECT(rsend(pair.server, buf, 500, 0) == 500);
	EXPECT(rrecv(pair.server, buf, 500, MSG_WAITALL) == 500 && !memcmp(buf + 490, "0123456789", 10));
	pthread_join(thread, &ret);
	EXPECT(ret != NULL && filled(region[0], SIZE, 3, 0));
	for (int i = 0; i < MESSAGES; i++)
		EXPECT(rrecv(pair.client, buf, 500, MSG_WAITALL) == 500);
	rs_pair_close(&pair);
}

/* More than the send buffer holds, while the peer is slow to take it. */
static void many_writes(void)
{
	enum { BIG = 1 << 20, PIECE = 60000, ROUNDS = 8 };
	char *mapped = calloc(1, BIG), *data = malloc(BIG);

	EXPECT(mapped && data && rs_pair_with(&pair, AF_INET, with_table));
	EXPECT(riomap(pair.server, mapped, BIG, PROT_WRITE, 0, 0) == 0);
	one_byte(pair.server, pair.client);
	for (int round = 0; round < ROUNDS; round++) {
		fill(data, BIG, round, 0);
		for (size_t at = 0; at < BIG; at += PIECE) {
			size_t len = BIG - at < PIECE ? BIG - at : PIECE;

			EXPECT(riowrite(pair.client, data + at, len, at, 0) == len);
		}
		one_byte(pair.client, pair.server);
		EXPECT(filled(mapped, BIG, round, 0));
	}
	rs_pair_close(&pair);
	free(mapped);
	free(data);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(announcements_are_counted);
	CASE(announcements_alone);
	CASE(over_the_end);
	CASE(across_two);
	CASE(ended_mapping);
	CASE(unmapping_one_of_two);
	CASE(with_traffic);
	CASE(many_writes);
	return finish();
}
