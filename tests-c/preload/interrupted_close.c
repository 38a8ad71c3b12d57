/*
 * A handler leaves close(2) by longjmp(3) while the connection lingers: the thread can be cancelled afterwards, as
 * before.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static sigjmp_buf outside;

static void leaves(int signal)
{
	(void)signal;
	siglongjmp(outside, 1);
}

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct linger linger = { .l_onoff = 1, .l_linger = 20 };
	struct itimerval soon = { .it_value = { 0, 100000 } };
	static char data[100000];
	socklen_t len = sizeof address;
	int to = socket(AF_INET, SOCK_STREAM, 0), from = socket(AF_INET, SOCK_STREAM, 0), peer, state;

	if (bind(to, (struct sockaddr *)&address, len) || listen(to, 1) || getsockname(to, (struct sockaddr *)&address, &len) ||
	    connect(from, (struct sockaddr *)&address, len) || (peer = accept(to, NULL, NULL)) < 0)
		return fail("a connection");
	while (send(from, data, sizeof data, MSG_DONTWAIT) > 0)
		;
	if (setsockopt(from, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) || signal(SIGALRM, leaves) == SIG_ERR)
		return fail("SO_LINGER");
	if (!sigsetjmp(outside, 1)) {
		setitimer(ITIMER_REAL, &soon, NULL);
		close(from);
		return fail("close was not interrupted");
	}
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
	if (state != PTHREAD_CANCEL_ENABLE)
		return fail("the thread cannot be cancelled any more");
	return 0;
}
