/* The cases of abuse that load and unload plug-ins, and the libraries themselves. */
#include "abuse.h"

#include <dlfcn.h>

void abuse_loading(const char *self);

static char plugin_path[4096];

struct plugin {
	void *handle;
	int (*socket)(void);
	int (*connect)(const struct sockaddr_in *to);
	union address to;
	int fd;
};

static void load(struct plugin *plugin, int flags)
{
	EXPECT((plugin->handle = dlopen(plugin_path, RTLD_NOW | flags)) != NULL);
	EXPECT((*(void **)&plugin->socket = dlsym(plugin->handle, "plugin_socket")) != NULL);
	EXPECT((*(void **)&plugin->connect = dlsym(plugin->handle, "plugin_connect")) != NULL);
}

static void *plugin_dials(void *argument)
{
	struct plugin *plugin = argument;

	plugin->fd = plugin->connect(&plugin->to.in);
	return NULL;
}

/* A plug-in's connection still works after the plug-in is unloaded; its destructor closes its own socket only. */
static void plug_ins(void)
{
	struct plugin plugin;
	int listener = listening(0, &plugin.to), first = 0, own, fd;
	pthread_t thread;

	for (int i = 0; i < 10; i++) {
		load(&plugin, 0);
		EXPECT(is_rsocket(own = plugin.socket()));
		EXPECT(pthread_create(&thread, NULL, plugin_dials, &plugin) == 0);
		EXPECT((fd = accept(listener, NULL, NULL)) >= 0);
		EXPECT(pthread_join(thread, NULL) == 0);
		EXPECT(talk(fd, plugin.fd));
		EXPECT(dlclose(plugin.handle) == 0);
		EXPECT(dlopen(plugin_path, RTLD_NOW | RTLD_NOLOAD) == NULL);
		EXPECT(!is_open(own));
		EXPECT(talk(fd, plugin.fd));
		EXPECT(close(fd) == 0 && close(plugin.fd) == 0);
		if (i == 0)
			first = open_descriptors();
	}
	EXPECT(open_descriptors() <= first + MADE_ONCE);
}

/* RTLD_DEEPBIND: the plug-in's calls are not intercepted, so it has kernel sockets. */
static void deep_bound_plug_in(void)
{
	struct plugin plugin;
	int fd[2];

	connected_pair(fd);
	load(&plugin, RTLD_DEEPBIND);
	EXPECT(plugin.socket() >= 0 && (is_automatic() || !is_rsocket(plugin.socket())));
	EXPECT(dlclose(plugin.handle) == 0);
	EXPECT(talk(fd[0], fd[1]));
}

/* Programs that load these libraries with dlopen(), and call dlclose(), also more often than dlopen(). */
static void libraries(void)
{
	const char *names[] = { getenv("LD_PRELOAD"), "librdmacm.so.1", "libibverbs.so.1" };
	int fd[2];

	connected_pair(fd);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *handle = dlopen(names[i], RTLD_NOW);

		EXPECT(handle != NULL);
		for (int turn = 0; turn < 5; turn++)
			dlclose(handle);
		EXPECT(talk(fd[0], fd[1]));
		EXPECT(is_rsocket(stream_socket(0)));
	}
}

void abuse_loading(const char *self)
{
	snprintf(plugin_path, sizeof(plugin_path), "%s-plugin.so", self);
	CASE(plug_ins);
	CASE(deep_bound_plug_in);
	CASE(libraries);
}
