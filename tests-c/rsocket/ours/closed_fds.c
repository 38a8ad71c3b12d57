/*
 * A program that closes all descriptors, the library's own included, as daemons do when they start:
 * the connection to the address and path service neither uses nor closes the files that get its number.
 */
#include "cases.h"
#include "rscommon.h"
#include "acm.h"

#include <sys/epoll.h>
#include <sys/prctl.h>

enum { FIRST = 3, FILES = 64 };

static struct rspair pair;

/* ---- files of the program ----------------------------------------------------------- */

static int socket_at(int number)
{
	int fds[2];

	/* The other end, which shows a write, has a large number. */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) || fds[0] != number)
		return -1;
	return dup2(fds[1], number + 2 * FILES) < 0 || close(fds[1]) ? -1 : fds[0];
}

/* What other numbers than FIRST and those after it refer to stays. */
static void take_numbers(void)
{
	closefrom(FIRST);
	for (int fd = FIRST; fd < FIRST + FILES; fd++)
		EXPECT(socket_at(fd) == fd);
}

/* Returns whether it was neither written to nor read nor closed. */
static void sockets_are_untouched(void)
{
	char byte;

	for (int fd = FIRST; fd < FIRST + FILES; fd++) {
		EXPECT_ERROR((int)recv(fd + 2 * FILES, &byte, 1, 0), EAGAIN);
		EXPECT(send(fd + 2 * FILES, "x", 1, 0) == 1);
		EXPECT(recv(fd, &byte, 1, 0) == 1 && byte == 'x');
	}
}

/* ---- the connection to the address and path service ----------------------------------- */

/* One path, and where it starts. */
static long answer(const struct acm_message *request, struct acm_message *answer)
{
	union address source = local_addr(AF_INET, 0);

	(void)request;
	acm_paths(answer, 1);
	answer->records[1].type = ACM_TYPE_IP4;
	answer->records[1].flags = ACM_FLAG_SOURCE;
	memcpy(answer->records[1].info, &source.in.sin_addr, 4);
	answer->header.length = (uint16_t)(answer->header.length + sizeof(answer->records[1]));
	return answer->header.length;
}

/* In its own process, which keeps its descriptors. */
static void start_service(void)
{
	struct acm_server server;
	int pipes[2];
	char byte;

	EXPECT(!pipe(pipes));
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!acm_start(&server, answer, false) || write(pipes[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(pipes[1]);
	EXPECT(read(pipes[0], &byte, 1) == 1);
	close(pipes[0]);
}

static void ask_service(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res = NULL;

	EXPECT(!rdma_getaddrinfo(local_node(AF_INET), "7471", &hints, &res));
	EXPECT(res && res->ai_route_len);
	rdma_freeaddrinfo(res);
}

static void connection_to_service(void)
{
	start_service();
	ask_service();
	take_numbers();
	ask_service();
	sockets_are_untouched();
	ask_service();
}

/* ---- epolls ------------------------------------------------------------------------------ */

/* Closing what the child has closed already ends nothing. */
static void epoll_of_the_parent(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct repoll repoll;
	int epoll, status = -1;
	pid_t child;

	EXPECT(find_repoll(&repoll) && rs_pair(&pair, AF_INET) && (epoll = repoll.create(0)) >= 0);
	EXPECT(!repoll.control(epoll, EPOLL_CTL_ADD, pair.server, &event));
	if ((child = fork()) == 0) {
		closefrom(FIRST);
		_exit(rclose(epoll) || rclose(pair.server) ? 1 : 0);
	}
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1 && repoll.wait(epoll, &event, 1, -1) == 1);
	EXPECT(!rclose(epoll));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	acm_require_lab();
	CASE(connection_to_service);
	CASE(epoll_of_the_parent);
	return finish();
}
