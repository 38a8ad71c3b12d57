/* Streams between GIDs (AF_IB), without IP addresses. */
#include "cases.h"
#include "rscommon.h"

/* An address of the port from its GID's text, as in $IB_GID. */
static struct rdma_addrinfo *lookup(const char *port, int flags)
{
	struct rdma_addrinfo hints = {
		.ai_flags = flags | RAI_NUMERICHOST | RAI_FAMILY,
		.ai_family = AF_IB,
		.ai_port_space = RDMA_PS_TCP,
	};
	struct rdma_addrinfo *found;

	EXPECT(!rdma_getaddrinfo(getenv("IB_GID"), port, &hints, &found));
	EXPECT(found->ai_family == AF_IB);
	return found;
}

static void echoes(bool bind_client)
{
	struct rdma_addrinfo *passive = lookup("7471", RAI_PASSIVE), *active = lookup("7471", 0);
	int listener = rsocket(AF_IB, SOCK_STREAM, 0), client = rsocket(AF_IB, SOCK_STREAM, 0), server;
	char bytes[5];

	EXPECT(listener >= 0 && client >= 0);
	EXPECT(!rbind(listener, passive->ai_src_addr, passive->ai_src_len) && !rlisten(listener, 1));
	if (bind_client) {
		struct rdma_addrinfo *own = lookup("0", RAI_PASSIVE);

		EXPECT(!rbind(client, own->ai_src_addr, own->ai_src_len));
		rdma_freeaddrinfo(own);
	}
	rs_nonblock(client, true);
	EXPECT_ERROR(rconnect(client, active->ai_dst_addr, active->ai_dst_len), EINPROGRESS);
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	rs_nonblock(client, false);
	EXPECT(rsend(client, "hello", 5, 0) == 5);
	EXPECT(rrecv(server, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "hello", 5));
	EXPECT(rsend(server, "there", 5, 0) == 5);
	EXPECT(rrecv(client, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "there", 5));
	EXPECT(!rclose(client) && !rclose(server) && !rclose(listener));
	rdma_freeaddrinfo(passive);
	rdma_freeaddrinfo(active);
}

static void from_any_gid(void) { echoes(false); }
static void from_a_bound_gid(void) { echoes(true); }

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(from_any_gid);
	CASE(from_a_bound_gid);
	return finish();
}
