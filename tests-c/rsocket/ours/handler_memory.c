/*
 * rsend, rrecv and rpoll in a signal handler that may have interrupted malloc(3): on streams whose buffers have to
 * grow they neither allocate nor free memory, and the buffers grow nevertheless. The program has a malloc of its own,
 * which counts the calls of handlers.
 */
#include "cases.h"
#include "rscommon.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>

enum { MB = 1 << 20, PIECE = 100000, GROWN_KB = 2048 };

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static _Thread_local volatile sig_atomic_t in_handler;
/* Changed only by handlers, of which one runs at a time. */
static volatile sig_atomic_t violations;

static void count(void)
{
	if (in_handler)
		violations++;
}

void *malloc(size_t size)
{
	count();
	return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
	count();
	return __libc_calloc(number, size);
}

void *realloc(void *memory, size_t size)
{
	count();
	return __libc_realloc(memory, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	count();
	*memory = __libc_memalign(alignment, size);
	return *memory ? 0 : ENOMEM;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	count();
	return __libc_memalign(alignment, size);
}

void free(void *memory)
{
	if (memory)
		count();
	__libc_free(memory);
}

static struct rspair pair;
static char out[PIECE], in[PIECE];
/* volatile: raise(3) is declared as a function that changes no variable of this file. */
static volatile size_t sent, received;
static volatile bool is_good = true;

static void wait_in_handler(int fd, short events)
{
	struct pollfd entry = { .fd = fd, .events = events };

	rpoll(&entry, 1, 10);
}

static void receive(int signal)
{
	ssize_t len;

	(void)signal;
	in_handler = 1;
	wait_in_handler(pair.server, POLLIN);
	len = rrecv(pair.server, in, sizeof(in) - received % 1000, MSG_DONTWAIT);
	is_good &= len > 0 ? filled(in, len, 3, received) : errno == EAGAIN;
	received += len > 0 ? len : 0;
	in_handler = 0;
}

static void send_now(size_t size)
{
	ssize_t len;

	fill(out, size, 3, sent);
	len = rsend(pair.client, out, size, MSG_DONTWAIT);
	is_good &= len > 0 || errno == EAGAIN;
	sent += len > 0 ? len : 0;
}

static void send_large(int signal)
{
	(void)signal;
	in_handler = 1;
	wait_in_handler(pair.client, POLLOUT);
	send_now(sizeof(out));
	in_handler = 0;
}

/* The buffer is used up, and small messages follow. */
static void send_both(int signal)
{
	(void)signal;
	in_handler = 1;
	wait_in_handler(pair.client, POLLOUT);
	send_now(20000);
	for (int i = 0; i < 20; i++)
		send_now(300);
	in_handler = 0;
}

/* In a row, so that messages are held where earlier ones are on their way. */
static void send_small(int signal)
{
	ssize_t len;

	(void)signal;
	in_handler = 1;
	for (int i = 0; i < 50; i++) {
		fill(out, 10, 3, sent);
		len = rsend(pair.client, out, 10, MSG_DONTWAIT);
		if (len <= 0)
			break;
		/* Less than 10 where the peer's buffer ends. */
		sent += len;
	}
	in_handler = 0;
}

static void handle_by(void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler };

	EXPECT(!sigaction(SIGUSR1, &action, NULL));
}

static volatile bool enough;

static void *send_until_enough(void *unused)
{
	sent = send_until(pair.client, &enough, 3);
	EXPECT(!rshutdown(pair.client, SHUT_WR));
	return unused;
}

static void *receive_all(void *unused)
{
	ssize_t len;

	while ((len = rrecv(pair.server, in, sizeof(in) - received % 1000, 0)) > 0) {
		is_good &= filled(in, len, 3, received);
		received += len;
	}
	return unused;
}

static void handlers_receive(void)
{
	pthread_t sender;
	long before;

	EXPECT(rs_pair(&pair, AF_INET));
	before = pinned_kb();
	handle_by(receive);
	EXPECT(!pthread_create(&sender, NULL, send_until_enough, NULL));
	while (pinned_kb() < before + GROWN_KB)
		EXPECT(!raise(SIGUSR1) && is_good);
	enough = true;
	while (rrecv(pair.server, in, 1, MSG_PEEK) > 0)
		EXPECT(!raise(SIGUSR1) && is_good);
	EXPECT(!pthread_join(sender, NULL) && received == sent && violations == 0);
	rs_pair_close(&pair);
}

/*
 * `first`: the length of a message that is sent before, outside of handlers, or 0. The buffer to send from is as large
 * as this message needs.
 */
static void send_by(void (*handler)(int), size_t first)
{
	pthread_t receiver;

	EXPECT(rs_pair(&pair, AF_INET));
	handle_by(handler);
	EXPECT(!pthread_create(&receiver, NULL, receive_all, NULL));
	if (first > 0) {
		fill(out, first, 3, sent);
		EXPECT(send_all(pair.client, out, first) == first);
		sent += first;
	}
	while (sent < 16 * MB)
		EXPECT(!raise(SIGUSR1) && is_good);
	EXPECT(!rshutdown(pair.client, SHUT_WR) && !pthread_join(receiver, NULL));
	EXPECT(is_good && received == sent && violations == 0);
	rs_pair_close(&pair);
}

static void handlers_send(void)
{
	send_by(send_large, sizeof(out));
}

/* Without a buffer to send from. */
static void handlers_send_first(void)
{
	send_by(send_large, 0);
}

static void send_vector(int signal)
{
	struct iovec parts[] = { { out, 1 }, { out + 1, 0 }, { out + 1, 2999 }, { out + 3000, 30 } };
	ssize_t len;

	(void)signal;
	in_handler = 1;
	wait_in_handler(pair.client, POLLOUT);
	fill(out, 3030, 3, sent);
	len = rwritev(pair.client, parts, 4);
	is_good &= len > 0 || errno == EAGAIN;
	sent += len > 0 ? len : 0;
	in_handler = 0;
}

static void handlers_send_several_buffers_first(void)
{
	send_by(send_vector, 0);
}

static off_t target;

static void with_a_mapping(int fd)
{
	int entries = 1;

	SETUP(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
}

static void write_remote(int signal)
{
	ssize_t len;

	(void)signal;
	in_handler = 1;
	wait_in_handler(pair.client, POLLOUT);
	fill(out, 5000, 3, sent);
	len = riowrite(pair.client, out, 5000, target, MSG_DONTWAIT);
	is_good &= len > 0 || errno == EAGAIN;
	sent = len > 0 ? (size_t)len : 0;
	in_handler = 0;
}

static void handlers_write_to_mapped_memory_first(void)
{
	static char mapped[5000];
	char byte;

	EXPECT(rs_pair_with(&pair, AF_INET, with_a_mapping));
	EXPECT((target = riomap(pair.server, mapped, sizeof(mapped), PROT_WRITE, 0, -1)) != -1);
	EXPECT(rsend(pair.server, "m", 1, 0) == 1 && rrecv(pair.client, &byte, 1, 0) == 1);
	handle_by(write_remote);
	sent = 0;
	EXPECT(!raise(SIGUSR1) && is_good && sent > 0);
	/* After the write. */
	EXPECT(rsend(pair.client, "w", 1, 0) == 1 && rrecv(pair.server, &byte, 1, 0) == 1);
	EXPECT(filled(mapped, sent, 3, 0) && violations == 0);
	rs_pair_close(&pair);
}

static void handlers_send_large_and_small_messages(void)
{
	send_by(send_both, 1000);
}

static void handlers_send_small_messages(void)
{
	pthread_t receiver;

	EXPECT(rs_pair(&pair, AF_INET));
	handle_by(send_small);
	EXPECT(!pthread_create(&receiver, NULL, receive_all, NULL));
	while (sent < 50000)
		EXPECT(!raise(SIGUSR1));
	EXPECT(!rshutdown(pair.client, SHUT_WR) && !pthread_join(receiver, NULL));
	EXPECT(is_good && received == sent && violations == 0);
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(handlers_receive);
	CASE(handlers_send);
	CASE(handlers_send_first);
	CASE(handlers_send_several_buffers_first);
	CASE(handlers_write_to_mapped_memory_first);
	CASE(handlers_send_large_and_small_messages);
	CASE(handlers_send_small_messages);
	return finish();
}
