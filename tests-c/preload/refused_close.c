/*
 * With RS_FAKE_BUSY the first rclose of fake_rdmacm.c fails with EAGAIN, as librdmacm's does in a signal handler that has
 * interrupted another call: the number is still the socket, and is closed by the next call. With RS_FAKE_CLOSE_FAILS it fails
 * with EIO and has closed the rsocket, as close(2) has.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int closes_and_fails(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (close(fd) != -1 || errno != EIO || close(fd) != -1 || errno != EBADF)
		return fail("close");
	return 0;
}

int main(void)
{
	if (getenv("RS_FAKE_CLOSE_FAILS"))
		return closes_and_fails();

	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	int to = socket(AF_INET, SOCK_STREAM, 0), from = socket(AF_INET, SOCK_STREAM, 0), peer, copy;
	char byte = 1;

	if (bind(to, (struct sockaddr *)&address, len) || listen(to, 1) || getsockname(to, (struct sockaddr *)&address, &len) ||
	    connect(from, (struct sockaddr *)&address, len) || (peer = accept(to, NULL, NULL)) < 0)
		return fail("a connection");
	if (close(from) != -1 || errno != EAGAIN)
		return fail("close is not refused");
	if (send(from, &byte, 1, MSG_NOSIGNAL) != 1 || recv(peer, &byte, 1, 0) != 1)
		return fail("the number is not the socket any more");
	copy = dup(from);
	if (copy < 0 || close(copy) || send(from, &byte, 1, MSG_NOSIGNAL) != 1 || recv(peer, &byte, 1, 0) != 1)
		return fail("a copy was the last number");
	if (close(from) || recv(peer, &byte, 1, 0) != 0 || close(from) != -1 || errno != EBADF)
		return fail("close");
	return close(peer) || close(to);
}
