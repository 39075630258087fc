// Taking, using and giving back targets.
import { type ClientName, write } from "./api";
import { type Claim, type Lease, lab } from "./lab";
import { go, href } from "./router";

export interface Wanted {
  client: ClientName;
  selector?: string;
  exporter?: string;
  duration: string;
  /** An RFC 3339 time; as soon as possible if empty. */
  begin?: string;
}

export async function takeLease(wanted: Wanted): Promise<{ ns: string; name: string }> {
  const made = await write<{ metadata: { name: string; namespace: string } }>("POST", "leases", {
    namespace: wanted.client.ns,
    client: wanted.client.name,
    selector: wanted.selector ?? "",
    exporter: wanted.exporter ?? "",
    duration: wanted.duration,
    begin: wanted.begin ?? "",
  });
  return { ns: made.metadata.namespace, name: made.metadata.name };
}

/** Takes a target, switches it on and shows its console as soon as there is one. */
export async function openConsole(wanted: Wanted): Promise<void> {
  const lease = await takeLease(wanted);
  go(`${href("console", lease.ns, lease.name)}?power=on`);
}

function path(found: Lease | Claim): string {
  return `${"requests" in found ? "claims" : "leases"}/${found.ns}/${found.name}`;
}

export async function release(found: Lease | Claim): Promise<void> {
  await write("DELETE", path(found));
}

export async function extend(found: Lease | Claim, seconds: number): Promise<void> {
  const whole = Math.round((found.seconds ?? 0) + seconds);
  await write("PATCH", path(found), { duration: `${whole}s` });
}

export async function transfer(found: Lease | Claim, client: string): Promise<void> {
  await write("PATCH", path(found), { client });
}

/** All claims, and the leases of no claim that this person sees. */
export function leasesAndClaims(): (Lease | Claim)[] {
  const alone = (lease: Lease): boolean => !lab.claim.has(`${lease.ns}/${lease.claim ?? ""}`);
  return [...[...lab.lease.values()].filter(alone), ...lab.claim.values()];
}

/** Waiting leases and claims in the order in which they are served. */
export function queue(): (Lease | Claim)[] {
  return leasesAndClaims()
    .filter((found) => found.phase === "waiting")
    .sort(
      (a, b) =>
        b.priority - a.priority ||
        a.created.localeCompare(b.created) ||
        a.name.localeCompare(b.name),
    );
}

/** What a lease or claim asks for, in a few words. */
export function wantedBy(found: Lease | Claim): string {
  if (!("requests" in found)) return found.wanted;
  return [...found.requests, ...found.constraints].join("; ");
}

/** When the first lease of a claim ends; null while it has none. */
export function endOf(claim: Claim): string | null {
  const ends = claim.members.map(({ lease }) => lab.lease.get(`${claim.ns}/${lease}`)?.end);
  return ends.filter((end) => end != null).sort()[0] ?? null;
}

export function selectorOf(labels: Record<string, string>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(",");
}

export function isMine(lease: Lease | Claim, mine: ClientName[]): boolean {
  return mine.some((client) => client.ns === lease.ns && client.name === lease.client);
}
