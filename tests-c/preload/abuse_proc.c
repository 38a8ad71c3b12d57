/* The cases of abuse with other processes: fork, vfork, exec, posix_spawn. */
#include "abuse.h"

int abuse_exec_main(int number);
void abuse_processes(const char *self);

static const char *program;

/* In the started program: prints "N open, M all" for the numbers above standard error, except /proc/self/fd's. */
int abuse_exec_main(int number)
{
	printf("%d open, %d all\n", is_open(number), open_descriptors());
	return 0;
}

/* Stores the output of a program that is started by fork or vfork, and exec, with a pipe as standard output. */
static void answer_of(pid_t (*start_child)(void), int number, char *answer, size_t size)
{
	char text[16];
	int out[2], status;
	pid_t child;
	ssize_t n;

	snprintf(text, sizeof(text), "%d", number);
	EXPECT(pipe2(out, O_CLOEXEC) == 0);
	child = start_child();
	if (child == 0) {
		dup2(out[1], 1);
		execl(program, program, "descriptors", text, (char *)NULL);
		_exit(127);
	}
	EXPECT(child > 0);
	EXPECT(close(out[1]) == 0);
	EXPECT((n = read(out[0], answer, size - 1)) > 0);
	answer[n] = 0;
	EXPECT(close(out[0]) == 0);
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

/* The executed program sees the right descriptors, and none of the library's. */
static void exec_case(pid_t (*start_child)(void))
{
	char without[64], with[64], wanted[64];
	int kept, fd[2], all;

	connected_pair(fd);
	EXPECT(fcntl(fd[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd[1], F_SETFD, FD_CLOEXEC) == 0);
	EXPECT((kept = stream_socket(SOCK_CLOEXEC)) >= 0);
	EXPECT(fcntl(kept, F_GETFD) == FD_CLOEXEC);
	answer_of(start_child, kept, without, sizeof(without));
	EXPECT(sscanf(without, "0 open, %d all", &all) == 1);
	EXPECT(talk(fd[0], fd[1]));
	/* The number itself stays open across exec, as an ordinary socket's does, but no other one. */
	EXPECT(fcntl(kept, F_SETFD, 0) == 0);
	answer_of(start_child, kept, with, sizeof(with));
	snprintf(wanted, sizeof(wanted), "1 open, %d all\n", all + 1);
	EXPECT(strcmp(with, wanted) == 0);
	EXPECT(talk(fd[0], fd[1]));
}

static pid_t by_fork(void)
{
	return fork();
}

static void fork_exec(void)
{
	exec_case(by_fork);
}

/* vfork() must not be called in a function that returns before exec: its frame would be gone for the parent. */
static void vfork_exec(void)
{
	int fd[2], status;
	pid_t child;

	connected_pair(fd);
	for (int i = 0; i < 5; i++) {
		child = vfork();
		if (child == 0) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(127);
		}
		EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		EXPECT(talk(fd[0], fd[1]));
	}
}

/* posix_spawn() with file actions: a pipe as the child's output, a socket's number closed in the child only. */
static void spawn(void)
{
	posix_spawn_file_actions_t actions;
	char *argv[] = { "echo", "spawned", NULL }, answer[32] = "";
	int fd[2], out[2], status;
	pid_t child;

	connected_pair(fd);
	EXPECT(pipe2(out, O_CLOEXEC) == 0);
	EXPECT(posix_spawn_file_actions_init(&actions) == 0);
	EXPECT(posix_spawn_file_actions_adddup2(&actions, out[1], 1) == 0);
	EXPECT(posix_spawn_file_actions_addclose(&actions, fd[0]) == 0);
	EXPECT(posix_spawn(&child, "/bin/echo", &actions, NULL, argv, environ) == 0);
	EXPECT(close(out[1]) == 0);
	EXPECT(read(out[0], answer, sizeof(answer) - 1) == 8 && strcmp(answer, "spawned\n") == 0);
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(posix_spawn_file_actions_destroy(&actions) == 0);
	EXPECT(talk(fd[0], fd[1]));
}

/* A child that ends, by exit or by a signal, does not affect its parent's connection. */
static void fork_child_ends(void)
{
	int fd[2], status;
	pid_t child;

	connected_pair(fd);
	for (int i = 0; i < 4; i++) {
		child = fork();
		if (child == 0) {
			if (i % 2)
				raise(SIGKILL);
			if (i == 0)
				_exit(0);
			exit(0);
		}
		EXPECT(child > 0 && waitpid(child, &status, 0) == child);
		EXPECT(talk(fd[0], fd[1]));
	}
}

/* Nor does a child that closes its copies of the descriptors first. */
static void fork_child_closes(void)
{
	int fd[2], status;
	pid_t child;

	connected_pair(fd);
	child = fork();
	if (child == 0) {
		close(fd[0]);
		close(fd[1]);
		for (int i = 3; i < 1024; i++)
			close(i);
		_exit(0);
	}
	EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	EXPECT(talk(fd[0], fd[1]));
}

/* A child makes its own connections while the parent's are in use. */
static void fork_child_connects(void)
{
	int fd[2], own[2], status;
	pid_t child;

	connected_pair(fd);
	child = fork();
	if (child == 0) {
		connected_pair(own);
		_exit(talk(own[0], own[1]) ? 0 : 1);
	}
	EXPECT(child > 0);
	EXPECT(talk(fd[0], fd[1]));
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(talk(fd[0], fd[1]));
}

void abuse_processes(const char *self)
{
	program = self;
	CASE(fork_exec);
	CASE(vfork_exec);
	CASE(spawn);
	CASE(fork_child_ends);
	CASE(fork_child_closes);
	CASE(fork_child_connects);
}
