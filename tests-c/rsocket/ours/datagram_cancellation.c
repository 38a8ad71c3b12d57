/*
 * Threads that are cancelled while they send datagrams over UDP: the socket works for the others. Run on ours only, for the
 * reference's datagrams do not work over RoCE.
 */
#include "cases.h"
#include "rscommon.h"

#include <pthread.h>
#include <sched.h>

enum { ROUNDS = 100 };

struct sender {
	int fd;
	union address to;
	volatile int sent;
};

static void *send_on(void *argument)
{
	struct sender *sender = argument;

	for (;;) {
		rsendto(sender->fd, "x", 1, MSG_DONTWAIT, &sender->to.sa, addr_len(&sender->to));
		sender->sent++;
	}
	return NULL;
}

static void a_cancelled_sender_leaves_no_lock(void)
{
	struct sender sender = { .fd = rsocket(AF_INET, SOCK_DGRAM, 0) };
	union address own = local_addr(AF_INET, 0);
	int peer = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(sender.to);

	EXPECT(sender.fd >= 0 && !rbind(sender.fd, &own.sa, addr_len(&own)));
	EXPECT(!bind(peer, &own.sa, addr_len(&own)) && !getsockname(peer, &sender.to.sa, &len));
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t thread;

		sender.sent = 0;
		EXPECT(!pthread_create(&thread, NULL, send_on, &sender));
		while (sender.sent < 1 + i % 7)
			sched_yield();
		EXPECT(!pthread_cancel(thread));
		EXPECT(!pthread_join(thread, NULL));
		EXPECT(rsendto(sender.fd, "y", 1, MSG_DONTWAIT, &sender.to.sa, addr_len(&sender.to)) == 1 ||
		       errno == EAGAIN);
	}
	EXPECT(!rclose(sender.fd) && !close(peer));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(a_cancelled_sender_leaves_no_lock);
	return finish();
}
