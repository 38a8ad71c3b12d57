/* A plug-in that uses sockets, for the cases of abuse_load.c: it has an open socket while it is loaded. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static int own = -1;

__attribute__((constructor)) static void loaded(void)
{
	own = socket(AF_INET, SOCK_STREAM, 0);
}

__attribute__((destructor)) static void unloaded(void)
{
	close(own);
}

int plugin_socket(void);
int plugin_connect(const struct sockaddr_in *to);

int plugin_socket(void)
{
	return own;
}

int plugin_connect(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0)
		return fd;
	close(fd);
	return -1;
}
