/* Preloaded into a process and its children: writes each host name that is looked up, and each
 * address that is connected to, as a line of the file that RECORDED names. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void record(const char *name) {
    const char *path = getenv("RECORDED");
    int file = path && name ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (file >= 0) {
        dprintf(file, "%s\n", name);
        close(file);
    }
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        dlsym(RTLD_NEXT, "getaddrinfo");
    record(node);
    return real(node, service, hints, found);
}

struct hostent *gethostbyname(const char *name) {
    struct hostent *(*real)(const char *) = dlsym(RTLD_NEXT, "gethostbyname");
    record(name);
    return real(name);
}

int gethostbyname_r(const char *name, struct hostent *entry, char *buffer, size_t size,
                    struct hostent **found, int *error) {
    int (*real)(const char *, struct hostent *, char *, size_t, struct hostent **, int *) =
        dlsym(RTLD_NEXT, "gethostbyname_r");
    record(name);
    return real(name, entry, buffer, size, found, error);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    char text[INET6_ADDRSTRLEN] = "";
    if (address->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, sizeof text);
    if (address->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, text, sizeof text);
    if (*text)
        record(text);
    return real(socket, address, length);
}
