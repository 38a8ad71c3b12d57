/* Private data: every length, in each direction, and what arrives of it. */
#include "common.h"

#include <poll.h>

static unsigned char data[256];

enum direction { REQUEST, REPLY, REJECT };
static const char *const direction_names[] = { "request", "reply", "reject" };

/* The receiver's event; siw reports unacceptable requests to the sender. */
static struct rdma_cm_event *receive(struct pair *pair, enum direction direction)
{
	struct pollfd entries[2] = { { .fd = pair->server_channel->fd, .events = POLLIN },
				     { .fd = pair->client_channel->fd, .events = POLLIN } };
	struct rdma_cm_event *event = NULL;

	if (direction == REQUEST)
		poll(entries, 2, -1);
	rdma_get_cm_event(entries[0].revents ? pair->server_channel : pair->client_channel,
			  &event);
	return event;
}

static void show_data(enum rdma_port_space ps, unsigned len, const struct rdma_cm_event *event)
{
	bool ud = ps == RDMA_PS_UDP;
	const struct rdma_conn_param *conn = &event->param.conn;
	const void *got = ud ? event->param.ud.private_data : conn->private_data;
	unsigned got_len = ud ? event->param.ud.private_data_len : conn->private_data_len;

	/* With CONNECT_ERROR the siw kernel returns uninitialized memory as data. */
	if (event->event == RDMA_CM_EVENT_CONNECT_ERROR)
		obs("%u -> %s", len, rdma_event_str(event->event));
	else
		obs("%u -> %s %u [%s]", len, rdma_event_str(event->event), got_len,
		    got ? bytes_str(got, got_len) : "NULL");
}

/* Sends `len` bytes in one direction; prints the error or what arrived. */
static void send_one(enum rdma_port_space ps, enum direction direction, unsigned len)
{
	struct rdma_conn_param param = conn_param(NULL, 0), with = conn_param(data, (uint8_t)len);
	struct rdma_cm_event *event = NULL;
	struct pair pair;
	int ret = -1;

	if (!pair_open(&pair, ps, AF_INET) || !pair_resolve(&pair, true))
		goto out;
	if (direction != REQUEST && !pair_request(&pair, &param, true))
		goto out;
	if (direction == REPLY)
		with.qp_num = pair.server->qp->qp_num;
	errno = 0;
	ret = direction == REQUEST ? rdma_connect(pair.client, &with)
	    : direction == REPLY ? rdma_accept(pair.server, &with)
				 : rdma_reject(pair.server, data, (uint8_t)len);
	if (ret) {
		obs("%u -> %d %s", len, ret, errno_name(errno));
		goto out;
	}
	event = receive(&pair, direction);
	if (!event)
		goto out;
	show_data(ps, len, event);
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		pair.server = event->id;
	rdma_ack_cm_event(event);
out:
	pair_close(&pair);
}

static void all_lengths(enum rdma_port_space ps, enum direction direction, unsigned step)
{
	topic("%s %s", ps == RDMA_PS_UDP ? "udp" : "tcp", direction_names[direction]);
	for (unsigned len = 0; len <= 255; len += step)
		send_one(ps, direction, len);
	send_one(ps, direction, 255);
}

/* A length without data, and data without a length. */
static void half_given(void)
{
	struct rdma_conn_param param = conn_param(data, 0);
	struct pair pair;

	topic("data without length");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true)) {
		CALL(rdma_connect(pair.client, &param));
		pair.server = take_event("server", pair.server_channel,
					 RDMA_CM_EVENT_CONNECT_REQUEST);
	}
	pair_close(&pair);

	topic("length without data");
	param = conn_param(NULL, 8);
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    !CALL(rdma_connect(pair.client, &param))) {
		pair.server = take_event("server", pair.server_channel,
					 RDMA_CM_EVENT_CONNECT_REQUEST);
		if (pair.server && !CALL(rdma_reject(pair.server, NULL, 8)))
			take_event("client", pair.client_channel, RDMA_CM_EVENT_REJECTED);
	}
	pair_close(&pair);

	topic("length without data, accepted");
	param = conn_param(NULL, 0);
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, true)) {
		param.private_data_len = 8;
		if (!CALL(rdma_accept(pair.server, &param)))
			take_event("client", pair.client_channel, RDMA_CM_EVENT_ESTABLISHED);
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	for (unsigned i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i / 8 + 1);
	all_lengths(RDMA_PS_TCP, REQUEST, 1);
	all_lengths(RDMA_PS_TCP, REPLY, 3);
	all_lengths(RDMA_PS_TCP, REJECT, 3);
	if (!on_siw()) {
		all_lengths(RDMA_PS_UDP, REQUEST, 3);
		all_lengths(RDMA_PS_UDP, REPLY, 3);
		all_lengths(RDMA_PS_UDP, REJECT, 3);
	}
	half_given();
	return finish();
}
