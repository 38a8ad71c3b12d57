/* The case of program about threads that are cancelled. */
#include "program.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static void *accepts(void *fd)
{
	accept(*(int *)fd, NULL, NULL);
	return NULL;
}

/* A cancelled accept() leaves no number: settles() counts them. */
int cancelled_accept(void)
{
	int to = listener(0), i;
	pthread_t thread;
	void *result;

	CHECK(to >= 0);
	for (i = 0; i < 3; i++) {
		CHECK(!pthread_create(&thread, NULL, accepts, &to));
		poll(NULL, 0, 50);
		CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
	}
	CHECK(close(to) == 0);
	return 0;
}
