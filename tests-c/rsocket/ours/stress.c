/*
 * Streams under load: four pairs of connected rsockets, each with two threads that send and two that receive, two threads
 * that poll all of them, one that sends signals, and one that ends streams, gently or at once, and replaces them. Every byte
 * is checked. A watchdog ends the program when a stream does not get on. Run on ours only: the reference loses wake-ups.
 * STRESS_SECONDS: how long (1); 0: until it is killed, with a line for each minute.
 */
#include "cases.h"
#include "rscommon.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { STREAMS = 4, MAX_SEND = 300000, WATCHDOG_S = 60, GENTLE_OF = 3, SIGNAL_US = 2000, POLL_MS = 10, BIG_OF = 16 };

/* One direction of a stream: its two threads, and what they have done. */
struct way {
	struct stream *stream;
	int from, to;
	unsigned seed;
	uint64_t sent, received;
	pthread_t sender, receiver;
};

struct stream {
	struct rspair pair;
	struct way ways[2];
	/* The senders stop after the message they are at, and end their direction. */
	atomic_bool stop;
	/* Both directions are shut down at any instant: what is lost then is not counted. */
	atomic_bool cut;
};

static struct stream streams[STREAMS];
static atomic_ullong received_total, made, cut_streams;
static atomic_uint fds[2 * STREAMS];
static atomic_bool over;
static struct repoll repoll;
static int epoll;

/* Signals go to the threads that call this: a pair is connected by calls that an interruption would end. */
static void mask_signals(int how)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(how, &set, NULL);
}

/* ---- the threads of a stream -------------------------------------------------------------------------- */

static void *random_state(unsigned *state, unsigned seed)
{
	*state = seed * 2654435761u + 1;
	return state;
}

static unsigned some(unsigned *state, unsigned below)
{
	*state = *state * 1664525u + 1013904223u;
	return (*state >> 8) % below;
}

static void wait_for(int fd, short events)
{
	struct pollfd entry = { .fd = fd, .events = events };

	rpoll(&entry, 1, POLL_MS);
}

/* Whether the call may be repeated. */
static bool once_more(int fd, short events, int error)
{
	if (error == EAGAIN)
		wait_for(fd, events);
	return error == EAGAIN || error == EINTR;
}

static size_t next_length(unsigned *state)
{
	return 1 + some(state, some(state, BIG_OF) ? 500 : MAX_SEND);
}

static void *send_on(void *argument)
{
	struct way *way = argument;
	uint8_t *bytes = malloc(MAX_SEND);
	unsigned state;

	mask_signals(SIG_UNBLOCK);
	random_state(&state, way->seed);
	while (!way->stream->stop) {
		size_t len = next_length(&state), done = 0;

		fill(bytes, len, way->seed, way->sent);
		while (done < len) {
			ssize_t count = rsend(way->from, bytes + done, len - done, some(&state, 2) ? MSG_DONTWAIT : 0);

			if (count > 0)
				done += (size_t)count;
			else if (count == 0 || !once_more(way->from, POLLOUT, errno))
				break;
		}
		way->sent += done;
		if (done < len)
			break;
		/* Buffers shrink while nothing is sent. */
		if (!some(&state, 200))
			wait_for(-1, 0);
	}
	if (!way->stream->cut)
		EXPECT(!rshutdown(way->from, SHUT_WR) || way->stream->cut);
	free(bytes);
	return NULL;
}

static void *receive_on(void *argument)
{
	struct way *way = argument;
	uint8_t *bytes = malloc(MAX_SEND);
	unsigned state;

	mask_signals(SIG_UNBLOCK);
	random_state(&state, way->seed + 1);
	for (;;) {
		size_t room = next_length(&state);
		ssize_t count = rrecv(way->to, bytes, room, some(&state, 2) ? MSG_DONTWAIT : 0);

		if (count == 0 || (count < 0 && !once_more(way->to, POLLIN, errno)))
			break;
		if (count < 0)
			continue;
		EXPECT(filled(bytes, (size_t)count, way->seed, way->received));
		way->received += (uint64_t)count;
		received_total += (unsigned long long)count;
	}
	free(bytes);
	return NULL;
}

/* ---- beginning and ending streams ------------------------------------------------------------------- */

static void watch(int fd, unsigned place)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = fd };

	fds[place] = (unsigned)fd;
	EXPECT(!repoll.control(epoll, EPOLL_CTL_ADD, fd, &event));
}

static void begin(unsigned number)
{
	struct stream *stream = &streams[number];
	int pair[2];

	EXPECT(rs_pair(&stream->pair, AF_INET));
	pair[0] = stream->pair.client;
	pair[1] = stream->pair.server;
	stream->stop = stream->cut = false;
	for (unsigned i = 0; i < 2; i++) {
		watch(pair[i], 2 * number + i);
		stream->ways[i] = (struct way){ .stream = stream, .from = pair[i], .to = pair[!i], .seed = (unsigned)made++ };
	}
	for (unsigned i = 0; i < 2; i++) {
		EXPECT(!pthread_create(&stream->ways[i].sender, NULL, send_on, &stream->ways[i]));
		EXPECT(!pthread_create(&stream->ways[i].receiver, NULL, receive_on, &stream->ways[i]));
	}
}

static void end(unsigned number, bool gently)
{
	struct stream *stream = &streams[number];

	stream->cut = !gently;
	stream->stop = true;
	if (!gently) {
		cut_streams++;
		rshutdown(stream->pair.client, SHUT_RDWR);
		rshutdown(stream->pair.server, SHUT_RDWR);
	}
	for (unsigned i = 0; i < 2; i++) {
		EXPECT(!pthread_join(stream->ways[i].sender, NULL));
		EXPECT(!pthread_join(stream->ways[i].receiver, NULL));
		EXPECT(gently ? stream->ways[i].received == stream->ways[i].sent : stream->ways[i].received <= stream->ways[i].sent);
	}
	rs_pair_close(&stream->pair);
}

/* ---- threads beside them ------------------------------------------------------------------------------ */

static void *poll_all(void *unused)
{
	mask_signals(SIG_UNBLOCK);
	while (!over) {
		struct pollfd entries[2 * STREAMS];

		for (unsigned i = 0; i < 2 * STREAMS; i++)
			entries[i] = (struct pollfd){ .fd = (int)fds[i], .events = i % 2 ? POLLIN : POLLIN | POLLOUT };
		rpoll(entries, 2 * STREAMS, POLL_MS);
		sched_yield();
	}
	return unused;
}

static void *epoll_all(void *unused)
{
	struct epoll_event events[2 * STREAMS];

	mask_signals(SIG_UNBLOCK);
	while (!over)
		repoll.wait(epoll, events, 2 * STREAMS, POLL_MS);
	return unused;
}

static void do_nothing(int number)
{
	(void)number;
}

/* Signals to the process, which some thread without them blocked takes; in turn with and without SA_RESTART. */
static void *send_signals(void *unused)
{
	for (unsigned i = 0; !over; i++) {
		struct sigaction action = { .sa_handler = do_nothing, .sa_flags = i % 2 ? SA_RESTART : 0 };

		sigaction(SIGUSR1, &action, NULL);
		kill(getpid(), SIGUSR1);
		usleep(SIGNAL_US);
	}
	return unused;
}

static void *watch_progress(void *unused)
{
	unsigned long long last = 0, streams_made = 0;
	struct timespec since, minute;

	clock_gettime(CLOCK_MONOTONIC, &since);
	minute = since;
	while (!over) {
		if (received_total != last || made != streams_made)
			clock_gettime(CLOCK_MONOTONIC, &since);
		last = received_total;
		streams_made = made;
		EXPECT(elapsed_ms(&since) < WATCHDOG_S * 1000L * (long)(hang_seconds() / HANG_SECONDS));
		if (elapsed_ms(&minute) > 60000) {
			printf("     %llu bytes, %llu streams, %llu of them cut\n", last, made / 2, (unsigned long long)cut_streams);
			fflush(stdout);
			clock_gettime(CLOCK_MONOTONIC, &minute);
		}
		usleep(200000);
	}
	return unused;
}

int main(int argc, char **argv)
{
	static void *(*const beside[])(void *) = { poll_all, epoll_all, send_signals, watch_progress };
	const char *seconds = getenv("STRESS_SECONDS");
	long limit_ms = (seconds ? atol(seconds) : 1) * 1000;
	pthread_t threads[sizeof(beside) / sizeof(beside[0])];
	struct timespec since;
	unsigned state;

	start(argc, argv);
	case_name = "stress";
	random_state(&state, 1);
	EXPECT(find_repoll(&repoll) && (epoll = repoll.create(0)) >= 0);
	clock_gettime(CLOCK_MONOTONIC, &since);
	mask_signals(SIG_BLOCK);
	for (unsigned i = 0; i < STREAMS; i++)
		begin(i);
	for (unsigned i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
		EXPECT(!pthread_create(&threads[i], NULL, beside[i], NULL));
	while (!limit_ms || elapsed_ms(&since) < limit_ms) {
		unsigned number = some(&state, STREAMS);

		usleep(some(&state, 200000));
		end(number, some(&state, GENTLE_OF));
		begin(number);
	}
	for (unsigned i = 0; i < STREAMS; i++)
		end(i, true);
	over = true;
	for (unsigned i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
		EXPECT(!pthread_join(threads[i], NULL));
	printf("     %llu bytes, %llu streams, %llu of them cut\n", (unsigned long long)received_total, made / 2,
	       (unsigned long long)cut_streams);
	EXPECT(received_total > 0 && !rclose(epoll));
	declare_cases(1);
	printf("PASS %s\n", case_name);
	return finish();
}
