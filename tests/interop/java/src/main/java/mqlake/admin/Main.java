package mqlake.admin;

import mqlake.lines.RequestLoop;

/**
 * RocketMQ's admin tool behind a line protocol (see {@link RequestLoop}):
 *
 * <pre>
 * call   namesrv, method, args [, types]   a method of DefaultMQAdminExt; see {@link Calls}
 * tools  commands                          command lines of mqadmin: what each prints
 * </pre>
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        Calls calls = new Calls();
        RequestLoop.run((what, request) ->
            "tools".equals(what) ? Tool.run(request.getJSONArray("commands")) : calls.call(request));
    }
}
