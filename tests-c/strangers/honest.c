/* Clients that say something, wait for the echo, and look at every byte of it. One of them leaves and comes back now and then. */
#include "strangers.h"

enum { PAUSE_US = 100000, COME_BACK_US = 400000, RESEND_US = 500000, WAIT_MS = 20 };

struct client {
	int fd;
	enum { CONNECTING, SENDING, RECEIVING, PAUSING } state;
	unsigned seed;
	size_t len, done;
	/* When the state began, and a time after which the server has accepted the connection or received from it. */
	long since, quiet;
};

static struct client clients[MAX_CLIENTS];
static struct {
	int fd;
	unsigned seed;
	long since, sent;
	bool waiting;
} talkers[DATAGRAM_CLIENTS];
static unsigned seeds;

static void complain(const char *what, int error)
{
	if (!figures->why[0])
		snprintf((char *)figures->why, sizeof(figures->why), "%s: %s", what, errno_name(error));
}

static void come(struct client *client)
{
	union address to = server_addr(figures->port);

	client->fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	client->state = CONNECTING;
	client->since = client->quiet = now_us();
	if (client->fd < 0 || (rconnect(client->fd, &to.sa, sizeof(to.in)) && errno != EINPROGRESS)) {
		figures->refused++;
		complain("connect", errno);
	}
}

/*
 * Counts a lost connection and connects again. On a busy machine a client can learn that it is connected, or send its next
 * message, so late that the server has closed the connection as idle: that is the server's rule, not a fault.
 */
static void lose(struct client *client, const char *what, int error)
{
	if (client->state == CONNECTING)
		figures->refused++;
	else if (now_us() - client->quiet > IDLE_US)
		figures->expired++;
	else
		figures->broken++;
	if (client->state != CONNECTING)
		figures->connected--;
	complain(what, error);
	rclose(client->fd);
	come(client);
}

static void begin(struct client *client)
{
	client->seed = ++seeds;
	client->len = 1 + (client->seed * 2654435761u >> 8) % MESSAGE;
	client->done = 0;
	client->state = SENDING;
	client->since = now_us();
}

static void send_more(struct client *client)
{
	uint8_t bytes[MESSAGE];
	ssize_t done;

	fill(bytes, client->len, client->seed, 0);
	done = rsend(client->fd, bytes + client->done, client->len - client->done, 0);
	if (done < 0 && errno != EAGAIN)
		return lose(client, "send", errno);
	if (done > 0)
		client->done += (size_t)done;
	if (client->done == client->len) {
		client->state = RECEIVING;
		client->done = 0;
	}
}

static void receive_more(struct client *client)
{
	uint8_t bytes[MESSAGE];
	ssize_t done = rrecv(client->fd, bytes, client->len - client->done, 0);

	if (done == 0 || (done < 0 && errno != EAGAIN))
		return lose(client, "recv", done ? errno : 0);
	if (done < 0)
		return;
	if (!filled(bytes, (size_t)done, client->seed, client->done))
		figures->corrupted++;
	client->done += (size_t)done;
	if (client->done < client->len)
		return;
	figures->messages++;
	client->quiet = client->since;
	raise_to(&figures->longest_wait_us, now_us() - client->since);
	client->state = PAUSING;
	client->since = now_us();
}

static void connected(struct client *client)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (rgetsockopt(client->fd, SOL_SOCKET, SO_ERROR, &error, &len) || error)
		return lose(client, "connecting", error);
	figures->connected++;
	raise_to(&figures->longest_connect_us, now_us() - client->since);
	begin(client);
}

static void step(struct client *client, short revents)
{
	if (client->state == CONNECTING && revents)
		connected(client);
	else if (client->state == SENDING && revents)
		send_more(client);
	else if (client->state == RECEIVING && revents)
		receive_more(client);
	else if (client->state == PAUSING && now_us() - client->since > PAUSE_US)
		begin(client);
}

/* Nobody is left waiting without being counted. */
static void count_waiting(const struct client *client)
{
	if (client->state != PAUSING)
		raise_to(client->state == CONNECTING ? &figures->longest_connect_us : &figures->longest_wait_us,
			 now_us() - client->since);
}

/* ---- datagrams ------------------------------------------------------------------------------------- */

static void talk(unsigned i)
{
	uint8_t bytes[DATAGRAM], answer[MESSAGE];
	ssize_t done = rrecv(talkers[i].fd, answer, sizeof(answer), MSG_DONTWAIT);
	long now = now_us();

	if (done > 0 && talkers[i].waiting) {
		if (done == DATAGRAM && filled(answer, DATAGRAM, talkers[i].seed, 0)) {
			figures->datagrams++;
			raise_to(&figures->longest_datagram_us, now - talkers[i].since);
			talkers[i].waiting = false;
		} else if (done != DATAGRAM) {
			figures->corrupted++;
			complain("length of a datagram", 0);
		}
	}
	if (!talkers[i].waiting && now - talkers[i].since > PAUSE_US) {
		talkers[i].seed = ++seeds;
		talkers[i].since = now;
		talkers[i].waiting = true;
	} else if (!talkers[i].waiting || now - talkers[i].sent < RESEND_US) {
		return;
	} else {
		figures->datagrams_lost++;
		raise_to(&figures->longest_datagram_us, now - talkers[i].since);
	}
	fill(bytes, DATAGRAM, talkers[i].seed, 0);
	talkers[i].sent = now;
	rsend(talkers[i].fd, bytes, DATAGRAM, MSG_DONTWAIT);
}

static void open_talkers(void)
{
	union address to = server_addr(figures->datagram_port);

	for (unsigned i = 0; i < DATAGRAM_CLIENTS; i++) {
		talkers[i].fd = rsocket(AF_INET, SOCK_DGRAM, 0);
		if (talkers[i].fd < 0 || rconnect(talkers[i].fd, &to.sa, sizeof(to.in)))
			complain("connecting datagrams", errno);
	}
}

void be_honest(unsigned count, bool datagrams)
{
	static const short wanted[] = { POLLOUT, POLLOUT, POLLIN, 0 };
	struct pollfd entries[MAX_CLIENTS + DATAGRAM_CLIENTS];
	unsigned talking = datagrams ? DATAGRAM_CLIENTS : 0, next = 0;
	long came_back = now_us();

	for (unsigned i = 0; i < count; i++)
		come(&clients[i]);
	if (datagrams)
		open_talkers();
	while (!figures->stop_honest) {
		for (unsigned i = 0; i < count; i++)
			entries[i] = (struct pollfd){ clients[i].fd, wanted[clients[i].state], 0 };
		for (unsigned i = 0; i < talking; i++)
			entries[count + i] = (struct pollfd){ talkers[i].fd, POLLIN, 0 };
		rpoll(entries, count + talking, WAIT_MS);
		for (unsigned i = 0; i < count; i++) {
			step(&clients[i], entries[i].revents);
			count_waiting(&clients[i]);
		}
		for (unsigned i = 0; i < talking; i++)
			talk(i);
		if (now_us() - came_back > COME_BACK_US && clients[next].state == PAUSING) {
			figures->connected--;
			rclose(clients[next].fd);
			come(&clients[next]);
			next = (next + 1) % count;
			figures->reconnects++;
			came_back = now_us();
		}
	}
	for (unsigned i = 0; i < count; i++)
		rclose(clients[i].fd);
}
