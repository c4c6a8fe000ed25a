// Package settings reads, prints and explains the settings of sluice serve, which are flags of kong.
//
// A settings file has a section for each group of flags, and in it names of the environment in lower case:
//
//	store: {redis_url: "redis:6379"}
//	ports: {grpc_port: 8081}
//
// A flag on the command line overrides the environment, and the environment overrides the file ([File], [Values]).
// [InForce] says where each value comes from. It prints no secret. [Schema], [WritePage] and [Help] derive the schema,
// the page and the help from the flags. Names of envoyproxy/ratelimit that mean nothing here are reported
// ([WithoutEffect]).
//
// Some settings have values of their own. From the memory ([MemoryOf]) follow the number of tracked keys
// ([Memory.Table]), and the [Caps] of connections, bytes in flight, streams and rules. Within these, callers, peers,
// Envoys and rules cannot end the process by their number. [Memory.Ballast] and [EaseCollector] set the garbage
// collector for nodes, whose heap is small, and for many streams of RLQS. [Certificate] is for files of TLS, and
// [Advice] names the settings that an error speaks of.
package settings
