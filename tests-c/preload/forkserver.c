/* forkserver ADDRESS PORT: a process for each connection, like inetd's builtin services: answers each block (4 bytes
 * of length, big endian, then the block) with 32 zero bytes and the block. */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void die(const char *text)
{
	perror(text);
	exit(1);
}

/* Returns false at the end of the stream, which is an error only within a block. */
static int read_all(int fd, char *to, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t n = read(fd, to + done, size - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("read");
		if (n == 0 && done == 0)
			return 0;
		if (n == 0)
			die("end within a block");
		done += (size_t)n;
	}
	return 1;
}

static void write_all(int fd, const char *from, size_t size)
{
	while (size > 0) {
		ssize_t n = write(fd, from, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			die("write");
		from += n;
		size -= (size_t)n;
	}
}

static void serve(int fd)
{
	enum { DIGEST = 32, LARGEST = 1 << 20 };
	unsigned char head[4];

	while (read_all(fd, (char *)head, sizeof(head))) {
		size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
		char *block;

		if (size > LARGEST || !(block = calloc(1, DIGEST + size)))
			die("block too large");
		if (size > 0 && !read_all(fd, block + DIGEST, size))
			die("end before a block");
		write_all(fd, block, DIGEST + size);
		free(block);
	}
}

static int listen_at(const char *address, const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port)) };
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || inet_pton(AF_INET, address, &at.sin_addr) != 1)
		die("socket");
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) || bind(fd, (struct sockaddr *)&at, sizeof(at)) ||
	    listen(fd, 10))
		die("listen");
	return fd;
}

int main(int argc, char **argv)
{
	int listener;

	if (argc != 3)
		return 2;
	signal(SIGCHLD, SIG_IGN);
	listener = listen_at(argv[1], argv[2]);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		pid_t child;

		if (fd < 0 && errno == EINTR)
			continue;
		if (fd < 0)
			die("accept");
		child = fork();
		if (child < 0)
			die("fork");
		if (child == 0) {
			close(listener);
			serve(fd);
			close(fd);
			exit(0);
		}
		close(fd);
	}
}
