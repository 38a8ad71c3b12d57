/*
 * What calls on files and pipes cost: nanoseconds for each, the least of many rounds. Usage: cost [socket]
 *
 * With "socket" there is a socket first, so that librspreload looks at its table.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 2000, CALLS = 500 };

static int tube[2], zero, null;
static char byte;

static void reads(void)
{
	if (read(zero, &byte, 1) != 1)
		_exit(1);
}

static void writes(void)
{
	if (write(null, &byte, 1) != 1)
		_exit(1);
}

static void pipes(void)
{
	if (write(tube[1], &byte, 1) != 1 || read(tube[0], &byte, 1) != 1)
		_exit(1);
}

static void closes(void)
{
	if (close(open("/dev/null", O_RDONLY)))
		_exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static void measure(const char *name, void (*call)(void))
{
	double least = 1e18, start;
	int round, i;

	for (round = 0; round < ROUNDS; round++) {
		start = now();
		for (i = 0; i < CALLS; i++)
			call();
		start = now() - start;
		if (start < least)
			least = start;
	}
	printf("%s %.1f\n", name, least / CALLS);
}

int main(int argc, char **argv)
{
	zero = open("/dev/zero", O_RDONLY);
	null = open("/dev/null", O_WRONLY);
	if (pipe(tube) || zero < 0 || null < 0)
		return 1;
	if (argc > 1 && !strcmp(argv[1], "socket") && socket(AF_INET, SOCK_STREAM, 0) < 0)
		return 1;
	measure("read", reads);
	measure("write", writes);
	measure("pipe", pipes);
	measure("close", closes);
	return 0;
}
