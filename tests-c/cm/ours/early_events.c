/*
 * Events of an id that was not accepted yet, which some kernels report without the library's number: the program does not
 * get them. `command` forges them. Run on ours only: no kernel of the lab reports them.
 */
#include "commands.h"

#include <fcntl.h>

/* The next event that is read; 0: the kernel's. Number of the last connection request. */
static uint32_t forged, last_request;
static struct pair pair;

static void forge(struct ucma_abi_event_resp *answer)
{
	memset(answer, 0, sizeof(*answer));
	answer->id = last_request;
	answer->event = forged;
	forged = 0;
}

static ssize_t command(int fd, const void *data, size_t len)
{
	struct ucma_abi_get_event message;
	struct ucma_abi_event_resp *answer;
	ssize_t ret = (ssize_t)len;

	if (len != sizeof(message))
		return to_kernel(fd, data, len);
	memcpy(&message, data, sizeof(message));
	if (message.cmd != UCMA_CMD_GET_EVENT)
		return to_kernel(fd, data, len);
	answer = (struct ucma_abi_event_resp *)(uintptr_t)message.response;
	if (forged)
		forge(answer);
	else if ((ret = to_kernel(fd, data, len)) >= 0 && answer->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		last_request = answer->id;
	return ret;
}

static void not_shown(uint32_t kind)
{
	struct rdma_cm_event *event;

	forged = kind;
	EXPECT_ERROR(rdma_get_cm_event(pair.server_channel, &event), EAGAIN);
	EXPECT(!forged);
}

static void begin(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);

	EXPECT(pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true));
	EXPECT(pair_request(&pair, &param, true));
	EXPECT(!fcntl(pair.server_channel->fd, F_SETFL, O_NONBLOCK));
}

/* The connection is made as if nothing had happened. */
static void before_accepting(void)
{
	static const enum rdma_cm_event_type kinds[] = {
		RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED,
		RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
	};
	struct rdma_conn_param param = conn_param(NULL, 0);

	begin();
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		not_shown(kinds[i]);
	EXPECT(!fcntl(pair.server_channel->fd, F_SETFL, 0));
	EXPECT(!rdma_accept(pair.server, &param));
	EXPECT(quiet_event(pair.client_channel, RDMA_CM_EVENT_ESTABLISHED) == pair.client);
	EXPECT(quiet_event(pair.server_channel, RDMA_CM_EVENT_ESTABLISHED) == pair.server);
	pair_close(&pair);
}

/* A number that no id of the process has. */
static void of_nobody(void)
{
	begin();
	last_request += 1000;
	not_shown(RDMA_CM_EVENT_DISCONNECTED);
	not_shown(RDMA_CM_EVENT_ESTABLISHED);
	pair_close(&pair);
}

/* A datagram id's peer is reported by this event. */
static void established_is_shown(void)
{
	struct rdma_cm_event *event;

	begin();
	forged = RDMA_CM_EVENT_ESTABLISHED;
	EXPECT(!rdma_get_cm_event(pair.server_channel, &event));
	EXPECT(event->event == RDMA_CM_EVENT_ESTABLISHED && event->id == pair.server);
	EXPECT(!rdma_ack_cm_event(event));
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(before_accepting);
	CASE(of_nobody);
	CASE(established_is_shown);
	return finish();
}
