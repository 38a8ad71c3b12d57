/* The cases of program about data: sendfile, vectors, messages, options. */
#include "program.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

int sends_files(void)
{
	enum { SIZE = 200001 };
	static char data[SIZE], got[SIZE];
	char name[] = "/tmp/preload.XXXXXX";
	int fds[2], tube[2], file = mkstemp(name), i;
	off_t offset = 4097;

	for (i = 0; i < SIZE; i++)
		data[i] = i % 251;
	CHECK(!pair(fds) && !pipe(tube) && file >= 0 && !unlink(name) && write(file, data, SIZE) == SIZE);
	/* With an offset the file position does not change. */
	CHECK(lseek(file, 5, SEEK_SET) == 5 && sendfile(fds[0], file, &offset, 3) == 3 && offset == 4100);
	CHECK(lseek(file, 0, SEEK_CUR) == 5 && recv(fds[1], got, 3, MSG_WAITALL) == 3 && !memcmp(got, data + 4097, 3));
	/* Without an offset it does. */
	CHECK(sendfile(fds[0], file, NULL, 7) == 7 && lseek(file, 0, SEEK_CUR) == 12);
	CHECK(recv(fds[1], got, 7, MSG_WAITALL) == 7 && !memcmp(got, data + 5, 7));
	/* The whole file in several calls, with a count beyond its end; it is larger than the buffers. */
	offset = 1;
	CHECK(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
	for (i = 1; i < SIZE;) {
		ssize_t sent = sendfile(fds[0], file, &offset, SIZE), have, part;

		CHECK((sent > 0 || (sent == -1 && errno == EAGAIN)));
		for (have = 0; have < sent; have += part, i += part) {
			part = recv(fds[1], got + i, SIZE - i, 0);
			CHECK(part > 0);
		}
		CHECK(offset == i);
	}
	CHECK(!memcmp(got + 1, data + 1, SIZE - 1) && sendfile(fds[0], file, &offset, 10) == 0);
	offset = -1;
	CHECK(sendfile(fds[0], file, &offset, 10) == -1 && errno == EINVAL);
	CHECK(sendfile(fds[0], fds[1], NULL, 10) == -1 && errno == EINVAL);
	CHECK(sendfile(fds[0], 999, NULL, 10) == -1 && errno == EBADF);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0 && close(file) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0);
	return 0;
}

static volatile sig_atomic_t pipes;
static void count_pipe(int number)
{
	pipes += number == SIGPIPE;
}

/* SIGPIPE as with TCP, where the first send after the peer's close succeeds. */
int broken_pipe(void)
{
	int fds[2];

	CHECK(signal(SIGPIPE, count_pipe) != SIG_ERR && !pair(fds));
	CHECK(shutdown(fds[0], SHUT_WR) == 0);
	CHECK(send(fds[0], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE && pipes == 0);
	CHECK(send(fds[0], "x", 1, 0) == -1 && errno == EPIPE && pipes == 1);
	CHECK(write(fds[0], "x", 1) == -1 && errno == EPIPE && pipes == 2);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0 && !pair(fds));
	CHECK(close(fds[1]) == 0 && recv(fds[0], &(char){ 0 }, 1, 0) == 0);
	CHECK(write(fds[0], "x", 1) == 1 && pipes == 2);
	while (write(fds[0], "x", 1) == 1)
		;
	CHECK(errno == EPIPE && pipes == 3);
	CHECK(close(fds[0]) == 0 && signal(SIGPIPE, SIG_DFL) == count_pipe);
	return 0;
}

int vectors(void)
{
	int fds[2], value = 0;
	char a[3], b[4];
	struct iovec list[2] = { { "abc", 3 }, { "defg", 4 } }, into[2] = { { a, 3 }, { b, 4 } };
	struct msghdr out = { .msg_iov = list, .msg_iovlen = 2 }, in = { .msg_iov = into, .msg_iovlen = 2 };
	socklen_t len = sizeof(value);
	struct sockaddr_in peer;
	socklen_t size = sizeof(peer);

	CHECK(!pair(fds));
	CHECK(writev(fds[0], list, 2) == 7 && recv(fds[1], a, 3, MSG_PEEK) == 3 && readv(fds[1], into, 2) == 7);
	CHECK(!memcmp(a, "abc", 3) && !memcmp(b, "defg", 4));
	CHECK(sendmsg(fds[1], &out, 0) == 7 && recvmsg(fds[0], &in, 0) == 7 && !memcmp(b, "defg", 4));
	CHECK(sendto(fds[0], "xyz", 3, 0, NULL, 0) == 3 && recvfrom(fds[1], a, 3, 0, NULL, NULL) == 3 && a[0] == 'x');
	CHECK(getsockopt(fds[0], SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
	value = 1;
	CHECK(setsockopt(fds[0], IPPROTO_TCP, 1 /* TCP_NODELAY */, &value, sizeof(value)) == 0);
	CHECK(getpeername(fds[0], (struct sockaddr *)&peer, &size) == 0 && peer.sin_port == address.sin_port);
	CHECK(shutdown(fds[0], SHUT_WR) == 0 && read(fds[1], a, 3) == 0);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}
