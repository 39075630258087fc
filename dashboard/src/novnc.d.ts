// What is used of noVNC, which comes without types.
declare module "@novnc/novnc" {
  export default class RFB extends EventTarget {
    constructor(target: Element, channel: object, options?: { shared?: boolean });
    scaleViewport: boolean;
    background: string;
    addEventListener(
      type: "credentialsrequired",
      listener: (event: CustomEvent<{ types: string[] }>) => void,
    ): void;
    addEventListener(
      type: "securityfailure",
      listener: (event: CustomEvent<{ status: number; reason?: string }>) => void,
    ): void;
    addEventListener(
      type: string,
      listener: EventListenerOrEventListenerObject | null,
      options?: AddEventListenerOptions | boolean,
    ): void;
    disconnect(): void;
    focus(): void;
    sendCredentials(credentials: { password: string }): void;
    sendCtrlAltDel(): void;
  }
}
