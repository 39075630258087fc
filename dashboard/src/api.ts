// Requests to the service, on behalf of whoever is signed in.

export interface ClientName {
  ns: string;
  name: string;
}

export interface Session {
  user: string;
  csrf: string;
  expires: number;
  version: string;
  /** Clients that this person may act as, their own first. */
  clients: ClientName[];
  own: ClientName[];
  pools: boolean;
  providers: boolean;
  audit: boolean;
}

/** An outside issuer at which a browser can sign in. */
export interface Issuer {
  name: string;
  path: string;
}

/** Somebody who is not signed in. */
export interface Visitor {
  user: null;
  issuers: Issuer[];
  /** Whether the objects are in a Kubernetes cluster. */
  cluster: boolean;
}

export const API = "/dashboard/api/";

let csrf = "";

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function answer(response: Response): Promise<unknown> {
  const text = await response.text();
  let body: unknown = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    throw new Refused(response.status, `the service answered ${response.status}`);
  }
  if (!response.ok) {
    const said = (body as { message?: string } | null)?.message;
    throw new Refused(response.status, said ?? `the service answered ${response.status}`);
  }
  return body;
}

async function send(path: string, init: RequestInit): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(API + path, { ...init, credentials: "same-origin" });
  } catch {
    throw new Refused(0, "the service does not answer; it may be restarting");
  }
  return answer(response);
}

export async function get<T>(path: string): Promise<T> {
  return (await send(path, {})) as T;
}

export async function write<T>(method: string, path: string, body?: unknown): Promise<T> {
  const merge = method === "PATCH" && path.startsWith("objects/");
  const type = merge ? "application/merge-patch+json" : "application/json";
  const headers = { "x-bullpen-csrf": csrf, "content-type": type };
  const init: RequestInit = { method, headers };
  if (body !== undefined) init.body = JSON.stringify(body);
  return (await send(path, init)) as T;
}

export interface JsonChange {
  op: "test" | "add" | "replace" | "remove";
  path: string;
  value?: unknown;
}

/** Changes an object at places in it; all of the changes or, if a test fails, none. */
export async function patchJson(path: string, changes: JsonChange[]): Promise<void> {
  const headers = { "x-bullpen-csrf": csrf, "content-type": "application/json-patch+json" };
  await send(path, { method: "PATCH", headers, body: JSON.stringify(changes) });
}

/** Sends bytes as they are. */
export async function writeBytes(path: string, body: Uint8Array<ArrayBuffer>): Promise<void> {
  const headers = { "x-bullpen-csrf": csrf, "content-type": "application/octet-stream" };
  await send(path, { method: "POST", headers, body });
}

function kept(session: Session): Session {
  csrf = session.csrf;
  return session;
}

/** The session of this browser, or how to get one. */
export async function currentSession(): Promise<Session | Visitor> {
  const found = await get<Session | Visitor>("session");
  return found.user === null ? found : kept(found);
}

export async function signInWithToken(token: string): Promise<Session> {
  const headers = { authorization: `Bearer ${token}` };
  return kept((await send("session", { method: "POST", headers })) as Session);
}

export async function signInWithLink(secret: string): Promise<Session> {
  const headers = { "x-bullpen-link": secret };
  return kept((await send("session", { method: "POST", headers })) as Session);
}

export async function signOut(): Promise<void> {
  await write("DELETE", "session");
}
