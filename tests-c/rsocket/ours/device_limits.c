/*
 * Devices that can do less than others: fewer bytes inline, smaller CQs, no more protection domains; or
 * more: several completion vectors. The functions of libibverbs that say so are replaced by this
 * program's, which libraries find first. Run on ours only: the reference shares one PD, and fails.
 */
#include "cases.h"
#include "rscommon.h"

#include <dlfcn.h>

#define REAL(function) ((__typeof__(&function))dlsym(RTLD_NEXT, #function))

enum { ANY = 1 << 20, CONNECTIONS = 8, VECTORS = 4 };
static const char log_file[] = "/tmp/device_limits.log";

/* What the device can do, and what was asked of it. */
static struct {
	int inline_bytes, inline_error, completions, vectors, domains, domain_error;
	unsigned qps_refused, queries, domains_made, domains_gone, used[VECTORS];
	struct ibv_comp_channel *last_channel;
	int last_vector;
} can = { .inline_bytes = ANY, .completions = ANY, .domains = ANY };

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
	struct ibv_context *context = REAL(ibv_open_device)(which);

	if (context && can.vectors)
		context->num_comp_vectors = can.vectors;
	return context;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	int result = REAL(ibv_query_device)(context, attr);

	can.queries++;
	if (attr->max_cqe > can.completions)
		attr->max_cqe = can.completions;
	return result;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	if (entries > can.completions) {
		errno = EINVAL;
		return NULL;
	}
	if (can.vectors) {
		EXPECT(vector >= 0 && vector < can.vectors);
		/* Both CQs of a connection interrupt the same CPU. */
		if (channel == can.last_channel)
			EXPECT(vector == can.last_vector);
		else
			can.used[vector]++;
		can.last_channel = channel;
		can.last_vector = vector;
		vector = 0;
	}
	return REAL(ibv_create_cq)(context, entries, cq_context, channel, vector);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	if ((int)attr->cap.max_inline_data > can.inline_bytes) {
		can.qps_refused++;
		/* What a failed call leaves there is not to be relied on. */
		memset(&attr->cap, 0xff, sizeof(attr->cap));
		errno = can.inline_error;
		return NULL;
	}
	return REAL(ibv_create_qp)(pd, attr);
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd;

	if ((int)can.domains_made >= can.domains) {
		errno = can.domain_error;
		return NULL;
	}
	pd = REAL(ibv_alloc_pd)(context);
	can.domains_made += pd != NULL;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	int result = REAL(ibv_dealloc_pd)(pd);

	/* EBUSY: something was still in it. */
	EXPECT(result == 0);
	can.domains_gone++;
	return result;
}

/* ---- what connections do ---------------------------------------------------------------------- */

static void with_table(int fd)
{
	int entries = 4;

	SETUP(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
}

/* Short and long data in both directions, more of it than the queues and buffers hold, and the mapping table. */
static void works(const struct rspair *pair)
{
	static char out[50000], in[50000], mapped[1000];
	int ends[2] = { pair->client, pair->server };

	for (unsigned way = 0; way < 2; way++) {
		for (unsigned len = 1; len < 200; len++) {
			fill(out, len, len, 0);
			EXPECT(rsend(ends[way], out, len, 0) == (ssize_t)len);
			EXPECT(recv_all(ends[1 - way], in, len) == len && filled(in, len, len, 0));
		}
		for (unsigned round = 0; round < 10; round++) {
			fill(out, sizeof(out), round, 0);
			EXPECT(send_all(ends[way], out, sizeof(out)) == sizeof(out));
			EXPECT(recv_all(ends[1 - way], in, sizeof(in)) == sizeof(in));
			EXPECT(filled(in, sizeof(in), round, 0));
		}
	}
	EXPECT(riomap(pair->server, mapped, sizeof(mapped), PROT_WRITE, 0, 0) == 0);
	EXPECT(rsend(pair->server, "x", 1, 0) == 1 && rrecv(pair->client, in, 1, 0) == 1);
	EXPECT(riowrite(pair->client, out, sizeof(mapped), 0, 0) == sizeof(mapped));
	EXPECT(rsend(pair->client, "x", 1, 0) == 1 && rrecv(pair->server, in, 1, 0) == 1);
	EXPECT(!memcmp(mapped, out, sizeof(mapped)));
}

static void pair_works(void)
{
	struct rspair pair;

	EXPECT(rs_pair_with(&pair, AF_INET, with_table));
	works(&pair);
	rs_pair_close(&pair);
}

/* ---- cases ------------------------------------------------------------------------------------ */

static void takes_inline(int bytes, int error, unsigned refused)
{
	can.inline_bytes = bytes;
	can.inline_error = error;
	can.qps_refused = 0;
	pair_works();
	EXPECT(can.qps_refused == refused);
}

/* 64 bytes are asked for, then 32, then none; iWARP's words of four bytes go inline. */
static void less_inline(void)
{
	takes_inline(64, EINVAL, 0);
	takes_inline(63, EINVAL, 2);
	takes_inline(32, ENOMEM, 2);
	takes_inline(31, EINVAL, 4);
	takes_inline(on_siw() ? 4 : 0, ENOMEM, 4);
}

static void no_qp(const union address *to, int error, unsigned refused)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	can.inline_error = error;
	can.qps_refused = 0;
	EXPECT(fd >= 0);
	EXPECT_ERROR(rconnect(fd, &to->sa, addr_len(to)), error);
	EXPECT(can.qps_refused == refused && !rclose(fd));
}

static void no_qp_at_all(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL);

	EXPECT(listener >= 0);
	can.inline_bytes = -1;
	no_qp(&to, EPERM, 1);
	no_qp(&to, EINVAL, 3);
	no_qp(&to, ENOMEM, 3);
	EXPECT(!rclose(listener));
}

static void small_cqs(void)
{
	can.completions = 100;
	pair_works();
}

static void vectors_take_turns(void)
{
	struct rspair pairs[CONNECTIONS];

	can.vectors = VECTORS;
	for (int i = 0; i < CONNECTIONS; i++)
		EXPECT(rs_pair(&pairs[i], AF_INET));
	for (int i = 0; i < VECTORS; i++)
		EXPECT(can.used[i] == 2 * CONNECTIONS / VECTORS);
	for (int i = 0; i < CONNECTIONS; i++)
		rs_pair_close(&pairs[i]);
}

static void asked_once(void)
{
	unsigned before;

	pair_works();
	before = can.queries;
	for (int i = 0; i < 3; i++)
		pair_works();
	EXPECT(before > 0 && can.queries == before);
}

/* Each connection has its own PD at both ends, which goes with it: with all that was in it. */
static void domains_come_back(void)
{
	struct rspair pairs[CONNECTIONS];
	unsigned before;

	for (int i = 0; i < CONNECTIONS; i++)
		EXPECT(rs_pair_with(&pairs[i], AF_INET, with_table));
	/* And one that the ids of the device share. */
	EXPECT(can.domains_made == 2 * CONNECTIONS + 1);
	for (int i = 0; i < CONNECTIONS; i++)
		works(&pairs[i]);
	before = can.domains_gone;
	EXPECT(before == 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		rs_pair_close(&pairs[i]);
		EXPECT(can.domains_gone >= 2u * ((unsigned)i + 1));
	}
	EXPECT(can.domains_gone == can.domains_made);
}

static unsigned lines_of_log(const char *text)
{
	char line[1024];
	unsigned count = 0;
	FILE *file = fopen(log_file, "r");

	while (file && fgets(line, sizeof(line), file))
		count += strstr(line, text) != NULL;
	if (file)
		fclose(file);
	return count;
}

/* Both ends share a PD with whoever does, and say so. */
static void without_domains(void)
{
	static const int errors[] = { ENOMEM, ENOSPC, EAGAIN, EBUSY, EINVAL };
	struct rspair first;

	EXPECT(rs_pair(&first, AF_INET));
	can.domains = (int)can.domains_made;
	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		unsigned before = lines_of_log("no more protection domains");

		can.domain_error = errors[i];
		pair_works();
		EXPECT(lines_of_log("no more protection domains") == before + 2);
		EXPECT(lines_of_log(errno_name(errors[i])) >= 2);
	}
	EXPECT(can.domains_gone == 0);
	can.domains = ANY;
	pair_works();
	EXPECT(can.domains_gone == 2);
	rs_pair_close(&first);
}

/* A device that is gone has no PD either, and nothing to share. */
static void without_a_device(void)
{
	struct rspair first;
	int fd;

	EXPECT(rs_pair(&first, AF_INET));
	can.domains = 0;
	can.domain_error = EIO;
	EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT_ERROR(rconnect(fd, &first.to.sa, addr_len(&first.to)), EIO);
	EXPECT(!rclose(fd));
	rs_pair_close(&first);
}

int main(int argc, char **argv)
{
	/* Read when the library is loaded. */
	if (!getenv("RDMACM_LOG")) {
		setenv("RDMACM_LOG", log_file, 1);
		execv("/proc/self/exe", argv);
	}
	start(argc, argv);
	CASE(less_inline);
	CASE(no_qp_at_all);
	CASE(small_cqs);
	CASE(vectors_take_turns);
	CASE(asked_once);
	CASE(domains_come_back);
	CASE(without_domains);
	CASE(without_a_device);
	return finish();
}
