/* Strangers at a server: main DEVICE SECONDS [ATTACK[,ATTACK]]. Run by tests/run strangers. */
#include "strangers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* What no honest client and no turn of the server may take, whatever strangers do. They are far beyond what a busy machine
 * takes, and far below the time-outs that strangers used to impose (15 s to minutes). */
enum { WAIT_BOUND_MS = 10000, TURN_BOUND_MS = 2000, OVERSLEEP_BOUND_MS = 2000, BEGIN_MS = 60000, CALM_MS = 60000 };
/* Descriptors beside those of the connections that the server knows: a stream has two, the library some of its own. */
enum { FDS_OF_A_STREAM = 2, FDS_BESIDE = 24, PROCESSES = 8 };

struct figures *figures;
static bool judged = true;

long now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

void raise_to(volatile long *most, long value)
{
	if (value > *most)
		*most = value;
}

union address server_addr(uint16_t port)
{
	return local_addr(AF_INET, port);
}

/* Whether the condition came true in time. What it waits for happens in another process. */
#define AWAIT(condition, ms)                                               \
	__extension__({                                                    \
		long end_ = now_us() + (ms) * 1000L;                       \
		while (!(condition) && now_us() < end_)                    \
			usleep(10000);                                     \
		(condition);                                               \
	})

static unsigned failures;

static void want(bool good, const char *attack, const char *text)
{
	if (good)
		return;
	failures++;
	printf("%s %s: %s\n", judged ? "FAIL" : "NOTE", attack, text);
}
#define WANT(condition) want(condition, attack->name, #condition)

static bool alive(pid_t child)
{
	return waitpid(child, NULL, WNOHANG) == 0;
}

/* What the server may hold. Connections that nobody accepts stay, as with TCP, within a share of the limit. */
static unsigned settled_fds(const struct attack *attack)
{
	return FDS_OF_A_STREAM * figures->connections + FDS_BESIDE + attack->limits.descriptors / 2;
}

/* soft-iWARP has no datagrams; those of the reference do not work over RoCE. */
static bool talks(const struct attack *attack)
{
	return attack->datagrams && !on_siw() && judged;
}

static void show(const struct attack *attack, unsigned fds, long pinned)
{
	printf("FIGURES %s: longest wait %ld ms, connect %ld ms, turn %ld ms, oversleep %ld ms; %lu messages, %lu reconnects; "
	       "descriptors %u -> %u -> %u; pinned %ld -> %ld -> %ld KB; accepted %u, closed %u; attempts %lu, hits %lu; expired %u",
	       attack->name, figures->longest_wait_us / 1000, figures->longest_connect_us / 1000,
	       figures->longest_turn_us / 1000, figures->longest_oversleep_us / 1000, figures->messages,
	       figures->reconnects, fds, figures->fds_most, figures->fds_now, pinned, figures->most_pinned_kb,
	       figures->pinned_kb, figures->accepted, figures->closed, figures->attempts, figures->hits, figures->expired);
	if (talks(attack))
		printf("; %lu datagrams, %u sent again, longest %ld ms", figures->datagrams, figures->datagrams_lost,
		       figures->longest_datagram_us / 1000);
	if (figures->why[0])
		printf("; %s", (const char *)figures->why);
	printf("\n");
}

static void judge(const struct attack *attack)
{
	WANT(figures->messages > 0);
	WANT(figures->corrupted == 0);
	WANT(figures->broken == 0);
	WANT(figures->refused == 0);
	WANT(figures->longest_wait_us < WAIT_BOUND_MS * 1000L);
	WANT(figures->longest_connect_us < WAIT_BOUND_MS * 1000L);
	WANT(figures->longest_turn_us < TURN_BOUND_MS * 1000L);
	WANT(figures->longest_oversleep_us < OVERSLEEP_BOUND_MS * 1000L);
	WANT(figures->no_descriptor == 0);
	WANT(!attack->limits.locked_kb || figures->most_pinned_kb <= (long)attack->limits.locked_kb);
	if (talks(attack)) {
		WANT(figures->datagrams > 0);
		WANT(figures->longest_datagram_us < WAIT_BOUND_MS * 1000L);
	}
	/* Strangers that cannot begin are no test. */
	WANT(figures->attempts > 0 || !strcmp(attack->name, "nothing"));
	if (!strcmp(attack->name, "known_keys"))
		WANT(figures->hits == 0);
}

static void end_children(pid_t *children, unsigned count, int number)
{
	for (unsigned i = 0; i < count; i++)
		kill(children[i], number);
	for (unsigned i = 0; i < count; i++)
		waitpid(children[i], NULL, 0);
}

static void run_attack(const struct attack *attack, unsigned seconds)
{
	pid_t strangers[PROCESSES], server, honest;
	unsigned fds, had = failures;
	long pinned;
	int status = 0;

	memset(figures, 0, sizeof(*figures));
	if ((server = fork()) == 0) {
		serve(&attack->limits);
		exit(0);
	}
	WANT(AWAIT(figures->port || !alive(server), BEGIN_MS));
	if ((honest = fork()) == 0) {
		be_honest(attack->clients, talks(attack));
		exit(0);
	}
	WANT(AWAIT(figures->connected == attack->clients && figures->messages > attack->clients, BEGIN_MS));
	WANT(figures->refused == 0);
	fds = figures->fds_now;
	pinned = figures->pinned_kb;
	for (unsigned i = 0; i < attack->processes; i++)
		if ((strangers[i] = fork()) == 0) {
			attack->run();
			_exit(0);
		}
	/* The attack's time: nothing ends it but the clock. */
	AWAIT(!alive(server) || !alive(honest), seconds * 1000L);
	end_children(strangers, attack->processes, attack->far ? SIGTERM : SIGKILL);
	WANT(AWAIT(figures->fds_now && figures->fds_now <= settled_fds(attack), CALM_MS));
	figures->stop_honest = true;
	WANT(waitpid(honest, &status, 0) == honest && status == 0);
	show(attack, fds, pinned);
	judge(attack);
	figures->stop_server = true;
	WANT(waitpid(server, &status, 0) == server && status == 0);
	if (failures == had)
		printf("%s %s\n", judged ? "PASS" : "NOTE survives", attack->name);
}

static bool chosen(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = list; (at = strstr(at, name)); at += len)
		if ((at == list || at[-1] == ',') && (!at[len] || at[len] == ','))
			return true;
	return !*list;
}

int main(int argc, char **argv)
{
	const char *list = argc > 3 ? argv[3] : "";
	unsigned seconds = argc > 2 ? (unsigned)atoi(argv[2]) : 5;

	start(argc, argv);
	judged = !getenv("STRANGERS_UNJUDGED");
	figures = mmap(NULL, sizeof(*figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (figures == MAP_FAILED)
		return 2;
	declare_cases(attack_count);
	for (unsigned i = 0; i < attack_count; i++) {
		pid_t child;

		if (!chosen(list, attacks[i].name)) {
			leave_case(attacks[i].name, "not chosen");
			continue;
		}
		if (attacks[i].rxe_only && on_siw()) {
			leave_case(attacks[i].name, "soft-iWARP has no datagrams");
			continue;
		}
		/* A process group of its own, so that one that hangs is ended with everything that it began. */
		if ((child = fork()) == 0) {
			setpgid(0, 0);
			alarm(seconds + (BEGIN_MS + CALM_MS) / 1000 + 60);
			run_attack(&attacks[i], seconds);
			fflush(stdout);
			_exit(0);
		}
		int status;
		waitpid(child, &status, 0);
		kill(-child, SIGKILL);
		if (WIFSIGNALED(status))
			printf("%s %s: %s\n", judged ? "FAIL" : "NOTE", attacks[i].name,
			       WTERMSIG(status) == SIGALRM ? "hangs" : sigabbrev_np(WTERMSIG(status)));
	}
	return finish();
}
