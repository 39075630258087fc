// Taking, using and giving back targets.
import { type ClientName, write } from "./api";
import { type Lease, lab } from "./lab";
import { go, href } from "./router";

export interface Wanted {
  client: ClientName;
  selector?: string;
  exporter?: string;
  duration: string;
}

export async function takeLease(wanted: Wanted): Promise<{ ns: string; name: string }> {
  const made = await write<{ metadata: { name: string; namespace: string } }>("POST", "leases", {
    namespace: wanted.client.ns,
    client: wanted.client.name,
    selector: wanted.selector ?? "",
    exporter: wanted.exporter ?? "",
    duration: wanted.duration,
  });
  return { ns: made.metadata.namespace, name: made.metadata.name };
}

/** Takes a target, switches it on and shows its console as soon as there is one. */
export async function openConsole(wanted: Wanted): Promise<void> {
  const lease = await takeLease(wanted);
  go(`${href("console", lease.ns, lease.name)}?power=on`);
}

export async function release(lease: Lease): Promise<void> {
  await write("DELETE", `leases/${lease.ns}/${lease.name}`);
}

export async function extend(lease: Lease, seconds: number): Promise<void> {
  const whole = Math.round((lease.seconds ?? 0) + seconds);
  await write("PATCH", `leases/${lease.ns}/${lease.name}`, { duration: `${whole}s` });
}

export async function transfer(lease: Lease, client: string): Promise<void> {
  await write("PATCH", `leases/${lease.ns}/${lease.name}`, { client });
}

/** Waiting leases in the order in which they are served. */
export function queue(): Lease[] {
  return [...lab.lease.values()]
    .filter((lease) => lease.phase === "waiting")
    .sort(
      (a, b) =>
        b.priority - a.priority ||
        a.created.localeCompare(b.created) ||
        a.name.localeCompare(b.name),
    );
}

export function selectorOf(labels: Record<string, string>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(",");
}

export function isMine(lease: Lease, mine: ClientName[]): boolean {
  return mine.some((client) => client.ns === lease.ns && client.name === lease.client);
}
