/*
 * An address and path service that sends wrong answers, exits or does not answer: the client continues
 * without it, and queries the next one.
 */
#include "cases.h"
#include "acm.h"

#include <signal.h>

static long (*behaviour)(struct acm_message *);

static long answer(const struct acm_message *request, struct acm_message *answer)
{
	(void)request;
	return behaviour(answer);
}

/* Address resolution works with any answer of the service, and the result is consistent. */
static void resolve(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res = NULL;
	size_t size = sizeof(struct ibv_path_data);

	EXPECT(rdma_getaddrinfo(local_node(AF_INET), "7471", &hints, &res) == 0);
	EXPECT(res != NULL);
	for (struct rdma_addrinfo *info = res; info; info = info->ai_next) {
		EXPECT(info->ai_route_len % size == 0 && info->ai_route_len <= 6 * size);
		EXPECT(!info->ai_route == !info->ai_route_len);
		EXPECT(info->ai_dst_addr && info->ai_dst_len);
	}
	rdma_freeaddrinfo(res);
}

static void with(long (*how)(struct acm_message *))
{
	struct acm_server server;

	behaviour = how;
	EXPECT(acm_start(&server, answer, false));
	resolve();
	resolve();
	EXPECT(server.connections >= 1);
	acm_stop(&server);
}

static long short_header(struct acm_message *m) { acm_paths(m, 1); return 7; }
static long length_below_header(struct acm_message *m)
{
	acm_paths(m, 1);
	m->header.length = 3;
	return sizeof(m->header);
}
static long length_zero(struct acm_message *m)
{
	acm_paths(m, 1);
	m->header.length = 0;
	return sizeof(m->header);
}
static long length_of_half_a_record(struct acm_message *m)
{
	acm_paths(m, 1);
	m->header.length = sizeof(m->header) + 30;
	return m->header.length;
}
static long length_huge(struct acm_message *m)
{
	acm_paths(m, 16);
	m->header.length = 65535;
	return sizeof(*m);
}
/* A real service always returns the source. */
static long path_without_source(struct acm_message *m) { return acm_paths(m, 1); }
static long many_paths(struct acm_message *m) { return acm_paths(m, 16); }
static long wrong_types(struct acm_message *m)
{
	long len = acm_paths(m, 4);

	m->records[0].type = ACM_TYPE_NAME;
	memset(m->records[0].info, 'x', 64);
	m->records[2].type = 0x7777;
	return len;
}
static long source_of_unknown_type(struct acm_message *m)
{
	long len = acm_paths(m, 2);

	m->records[1].type = ACM_TYPE_NAME;
	m->records[1].flags = ACM_FLAG_SOURCE;
	memset(m->records[1].info, 0xff, 64);
	return len;
}
static long wrong_version(struct acm_message *m)
{
	m->header.version = 99;
	return acm_paths(m, 1);
}
static long wrong_opcode(struct acm_message *m)
{
	m->header.opcode = 0x13;
	return acm_paths(m, 1);
}
static long wrong_tid(struct acm_message *m)
{
	m->header.tid ^= 0xffff;
	return acm_paths(m, 1);
}
static long closes(struct acm_message *m) { (void)m; return -1; }
static long never(struct acm_message *m) { (void)m; return 0; }
static long well(struct acm_message *m) { return acm_paths(m, 1); }

static void answer_cut_in_header(void) { with(short_header); }
static void answer_length_below_header(void) { with(length_below_header); }
static void answer_length_zero(void) { with(length_zero); }
static void answer_half_a_record(void) { with(length_of_half_a_record); }
static void answer_longer_than_sent(void) { with(length_huge); }
static void answer_without_source(void) { with(path_without_source); }
static void answer_many_paths(void) { with(many_paths); }
static void answer_other_records(void) { with(wrong_types); }
static void answer_odd_source(void) { with(source_of_unknown_type); }
static void answer_other_version(void) { with(wrong_version); }
static void answer_other_opcode(void) { with(wrong_opcode); }
static void answer_other_tid(void) { with(wrong_tid); }
static void service_closes(void) { with(closes); }
/* The time is limited: the case's alarm ends a client that waits forever. */
static void service_never_answers(void) { with(never); }

/* The service exits and another one starts: the next call finds it. */
static void service_is_restarted(void)
{
	struct acm_server first, second;

	behaviour = closes;
	EXPECT(acm_start(&first, answer, false));
	resolve();
	acm_stop(&first);
	resolve();
	behaviour = well;
	EXPECT(acm_start(&second, answer, false));
	resolve();
	resolve();
	EXPECT(second.served >= 1);
	acm_stop(&second);
}

static void service_appears_late(void)
{
	struct acm_server server;

	unlink(ACM_SOCKET);
	unlink(ACM_PORT_FILE);
	resolve();
	behaviour = well;
	EXPECT(acm_start(&server, answer, false));
	resolve();
	acm_stop(&server);
}

/* A port file without a valid number, or with a port on which nothing listens. */
static void odd_port_files(void)
{
	static const char *const texts[] = { "", "abc", "-1", "0", "99999", "1", "6125xyz" };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		FILE *file = fopen(ACM_PORT_FILE, "w");

		EXPECT(file != NULL);
		fputs(texts[i], file);
		fclose(file);
		unlink(ACM_SOCKET);
		resolve();
	}
	unlink(ACM_PORT_FILE);
}

/* A dead peer must not raise SIGPIPE in the program. */
static void no_sigpipe(void)
{
	struct acm_server server;

	signal(SIGPIPE, SIG_DFL);
	behaviour = closes;
	EXPECT(acm_start(&server, answer, false));
	for (int i = 0; i < 5; i++)
		resolve();
	acm_stop(&server);
	resolve();
}

int main(int argc, char **argv)
{
	start(argc, argv);
	acm_require_lab();
	CASE(answer_cut_in_header);
	CASE(answer_length_below_header);
	CASE(answer_length_zero);
	CASE(answer_half_a_record);
	CASE(answer_longer_than_sent);
	CASE(answer_without_source);
	CASE(answer_many_paths);
	CASE(answer_other_records);
	CASE(answer_odd_source);
	CASE(answer_other_version);
	CASE(answer_other_opcode);
	CASE(answer_other_tid);
	CASE(service_closes);
	CASE(service_never_answers);
	CASE(service_is_restarted);
	CASE(service_appears_late);
	CASE(odd_port_files);
	CASE(no_sigpipe);
	return finish();
}
