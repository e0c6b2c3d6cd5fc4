package mqlake.wire;

import mqlake.lines.RequestLoop;

/**
 * RocketMQ's side of the wire behind a line protocol (see {@link RequestLoop}):
 *
 * <pre>
 * encode, decode, header, body, registration     see {@link Codec}
 * settings, tls                                  see {@link Settings}
 * admin.*                                        see {@link Admin}
 * namesrv.*, broker.*                            see {@link Servers}
 * </pre>
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        Admin admin = new Admin();
        Servers servers = new Servers();
        RequestLoop.run((what, request) -> {
            if (what.startsWith("admin.")) {
                return admin.serve(what.substring(6), request);
            }
            if (what.startsWith("namesrv.") || what.startsWith("broker.")) {
                return servers.serve(what, request);
            }
            if (what.equals("settings")) {
                return Settings.settings(request);
            }
            if (what.equals("tls")) {
                return Settings.tls();
            }
            return Codec.serve(what, request);
        });
    }
}
